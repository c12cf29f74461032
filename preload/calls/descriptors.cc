// Calls that make descriptors which are no sockets: none is refused because of internal ones.
#include <dirent.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>

#include "calls/interpose.h"
#include "os/real.h"
#include "state/internal_fds.h"

using namespace clan::preload;

namespace {

// The mode that open() has if it makes a file.
#define CLAN_MODE(flags)                                \
  mode_t mode = 0;                                      \
  if (((flags) & (O_CREAT | O_TMPFILE)) != 0) {         \
    va_list list;                                       \
    va_start(list, flags);                              \
    mode = static_cast<mode_t>(va_arg(list, unsigned)); \
    va_end(list);                                       \
  }

}  // namespace

CLAN_INTERPOSE int open(const char* path, int flags, ...) {
  CLAN_MODE(flags);
  return with_room([&] { return real().open(path, flags, mode); });
}
CLAN_INTERPOSE int open64(const char* path, int flags, ...) {
  CLAN_MODE(flags);
  return with_room([&] { return real().open64(path, flags, mode); });
}
CLAN_INTERPOSE int openat(int directory, const char* path, int flags, ...) {
  CLAN_MODE(flags);
  return with_room([&] { return real().openat(directory, path, flags, mode); });
}
CLAN_INTERPOSE int openat64(int directory, const char* path, int flags, ...) {
  CLAN_MODE(flags);
  return with_room([&] { return real().openat64(directory, path, flags, mode); });
}
CLAN_INTERPOSE FILE* fopen(const char* path, const char* mode) {
  return with_room([&] { return real().fopen(path, mode); });
}
CLAN_INTERPOSE FILE* fopen64(const char* path, const char* mode) {
  return with_room([&] { return real().fopen64(path, mode); });
}
CLAN_INTERPOSE DIR* opendir(const char* path) {
  return with_room([&] { return real().opendir(path); });
}
CLAN_INTERPOSE int pipe(int ends[2]) noexcept {
  return with_room([&] { return real().pipe(ends); });
}
CLAN_INTERPOSE int pipe2(int ends[2], int flags) noexcept {
  return with_room([&] { return real().pipe2(ends, flags); });
}
CLAN_INTERPOSE int socketpair(int domain, int type, int protocol, int ends[2]) noexcept {
  return with_room([&] { return real().socketpair(domain, type, protocol, ends); });
}
CLAN_INTERPOSE int eventfd(unsigned count, int flags) noexcept {
  return with_room([&] { return real().eventfd(count, flags); });
}
CLAN_INTERPOSE int timerfd_create(clockid_t clock, int flags) noexcept {
  return with_room([&] { return real().timerfd_create(clock, flags); });
}

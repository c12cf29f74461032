// Calls that make descriptors which are no sockets: none is refused because of internal ones.
#include <dirent.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cstdio>

#include "calls/interpose.h"
#include "os/real.h"
#include "share/passing.h"
#include "table/internal_fds.h"

using namespace clan::preload;

// The mode is passed if a file is to be made; otherwise it is ignored.
CLAN_INTERPOSED(int, open, (const char* path, int flags, mode_t mode), (path, flags, mode)) {
  return with_room([&] { return real().open(path, flags, mode); });
}
CLAN_INTERPOSED(int, open64, (const char* path, int flags, mode_t mode), (path, flags, mode)) {
  return with_room([&] { return real().open64(path, flags, mode); });
}
CLAN_INTERPOSED(int, openat, (int directory, const char* path, int flags, mode_t mode),
                (directory, path, flags, mode)) {
  return with_room([&] { return real().openat(directory, path, flags, mode); });
}
CLAN_INTERPOSED(int, openat64, (int directory, const char* path, int flags, mode_t mode),
                (directory, path, flags, mode)) {
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
CLAN_INTERPOSED(int, pipe, (int ends[2]), (ends)) {
  return with_room([&] { return real().pipe(ends); });
}
CLAN_INTERPOSED(int, pipe2, (int ends[2], int flags), (ends, flags)) {
  return with_room([&] { return real().pipe2(ends, flags); });
}
CLAN_INTERPOSED(int, socketpair, (int domain, int type, int protocol, int ends[2]),
                (domain, type, protocol, ends)) {
  return with_room([&] { return real().socketpair(domain, type, protocol, ends); });
}
CLAN_INTERPOSED(int, eventfd, (unsigned count, int flags), (count, flags)) {
  return with_room([&] { return real().eventfd(count, flags); });
}
CLAN_INTERPOSED(int, timerfd_create, (clockid_t clock, int flags), (clock, flags)) {
  return with_room([&] { return real().timerfd_create(clock, flags); });
}
CLAN_INTERPOSED(int, pidfd_getfd, (int pidfd, int target, unsigned flags), (pidfd, target, flags)) {
  return take_from(pidfd, target, flags);
}

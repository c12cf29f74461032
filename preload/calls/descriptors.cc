// Calls that make other descriptors than sockets. None fails because of the library's own ones.
#include <dirent.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <cstdio>

#include "calls/interpose.h"
#include "os/real.h"
#include "share/passing.h"
#include "table/internal_fds.h"

using namespace clan::preload;

#define CLAN_INTERPOSED_MAKER(result, name, parameters, arguments) \
  CLAN_INTERPOSED(result, name, parameters, arguments) {           \
    return with_room([&] { return real().name arguments; });       \
  }

// The mode is ignored unless a file is to be made.
CLAN_INTERPOSED_MAKER(int, open, (const char* path, int flags, mode_t mode), (path, flags, mode))
CLAN_INTERPOSED_MAKER(int, open64, (const char* path, int flags, mode_t mode), (path, flags, mode))
CLAN_INTERPOSED_MAKER(int, openat, (int directory, const char* path, int flags, mode_t mode),
                      (directory, path, flags, mode))
CLAN_INTERPOSED_MAKER(int, openat64, (int directory, const char* path, int flags, mode_t mode),
                      (directory, path, flags, mode))
CLAN_INTERPOSED_MAKER(int, pipe, (int ends[2]), (ends))
CLAN_INTERPOSED_MAKER(int, pipe2, (int ends[2], int flags), (ends, flags))
CLAN_INTERPOSED_MAKER(int, socketpair, (int domain, int type, int protocol, int ends[2]),
                      (domain, type, protocol, ends))
CLAN_INTERPOSED_MAKER(int, eventfd, (unsigned count, int flags), (count, flags))
CLAN_INTERPOSED_MAKER(int, timerfd_create, (clockid_t clock, int flags), (clock, flags))

CLAN_INTERPOSE FILE* fopen(const char* path, const char* mode) {
  return with_room([&] { return real().fopen(path, mode); });
}
CLAN_INTERPOSE FILE* fopen64(const char* path, const char* mode) {
  return with_room([&] { return real().fopen64(path, mode); });
}
CLAN_INTERPOSE DIR* opendir(const char* path) {
  return with_room([&] { return real().opendir(path); });
}

CLAN_INTERPOSED(int, pidfd_getfd, (int pidfd, int target, unsigned flags), (pidfd, target, flags)) {
  return take_from(pidfd, target, flags);
}

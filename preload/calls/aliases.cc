// Second names of interposed calls. A program may end a read() of its own with __read().
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include "calls/interpose.h"

CLAN_INTERPOSE int __close(int fd) { return ::close(fd); }
CLAN_INTERPOSE int __connect(int fd, const sockaddr* address, socklen_t size) {
  return ::connect(fd, address, size);
}
CLAN_INTERPOSE int __dup2(int fd, int to) noexcept { return ::dup2(fd, to); }
CLAN_INTERPOSE pid_t __fork() noexcept { return ::fork(); }
CLAN_INTERPOSE int __pipe(int ends[2]) noexcept { return ::pipe(ends); }
CLAN_INTERPOSE int __poll(pollfd* fds, nfds_t count, int timeout) {
  return ::poll(fds, count, timeout);
}
CLAN_INTERPOSE int __select(int n, fd_set* in, fd_set* out, fd_set* bad, timeval* timeout) {
  return ::select(n, in, out, bad, timeout);
}
// Optional arguments are passed like others; the callee ignores those that are not there.
CLAN_INTERPOSE int __fcntl(int fd, int command, void* argument) {
  return ::fcntl(fd, command, argument);
}
CLAN_INTERPOSE int __clone(int (*run)(void*), void* stack, int flags, void* argument,
                           pid_t* parent_tid, void* tls, pid_t* child_tid) noexcept {
  return ::clone(run, stack, flags, argument, parent_tid, tls, child_tid);
}
CLAN_INTERPOSE int __open(const char* path, int flags, mode_t mode) {
  return ::open(path, flags, mode);
}
CLAN_INTERPOSE int __open64(const char* path, int flags, mode_t mode) {
  return ::open64(path, flags, mode);
}

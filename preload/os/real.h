// The C library's own functions, below ours.
//
// `real()` is for calls an application makes and we pass on: cancellation points and other interposers stay
// in force. What the library does for itself uses `sys::` (sys.h).
#pragma once

#include <dirent.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdarg>
#include <cstddef>
#include <cstdio>

namespace clan::preload {

// X(result, name, parameters)
#define CLAN_REAL_FUNCTIONS(X)                                                                       \
  X(ssize_t, read, (int, void*, size_t))                                                             \
  X(ssize_t, write, (int, const void*, size_t))                                                      \
  X(ssize_t, readv, (int, const iovec*, int))                                                        \
  X(ssize_t, writev, (int, const iovec*, int))                                                       \
  X(ssize_t, preadv2, (int, const iovec*, int, off_t, int))                                          \
  X(ssize_t, pwritev2, (int, const iovec*, int, off_t, int))                                         \
  X(ssize_t, recv, (int, void*, size_t, int))                                                        \
  X(ssize_t, recvfrom, (int, void*, size_t, int, sockaddr*, socklen_t*))                             \
  X(ssize_t, recvmsg, (int, msghdr*, int))                                                           \
  X(int, recvmmsg, (int, mmsghdr*, unsigned, int, timespec*))                                        \
  X(ssize_t, send, (int, const void*, size_t, int))                                                  \
  X(ssize_t, sendto, (int, const void*, size_t, int, const sockaddr*, socklen_t))                    \
  X(ssize_t, sendmsg, (int, const msghdr*, int))                                                     \
  X(int, sendmmsg, (int, mmsghdr*, unsigned, int))                                                   \
  X(ssize_t, sendfile, (int, int, off_t*, size_t))                                                   \
  X(ssize_t, splice, (int, off64_t*, int, off64_t*, size_t, unsigned))                               \
  X(int, open, (const char*, int, ...))                                                              \
  X(int, open64, (const char*, int, ...))                                                            \
  X(int, openat, (int, const char*, int, ...))                                                       \
  X(int, openat64, (int, const char*, int, ...))                                                     \
  X(FILE*, fopen, (const char*, const char*))                                                        \
  X(FILE*, fopen64, (const char*, const char*))                                                      \
  X(DIR*, opendir, (const char*))                                                                    \
  X(int, pipe, (int*))                                                                               \
  X(int, pipe2, (int*, int))                                                                         \
  X(int, socketpair, (int, int, int, int*))                                                          \
  X(int, eventfd, (unsigned, int))                                                                   \
  X(int, timerfd_create, (clockid_t, int))                                                           \
  X(int, socket, (int, int, int))                                                                    \
  X(int, bind, (int, const sockaddr*, socklen_t))                                                    \
  X(int, listen, (int, int))                                                                         \
  X(int, getsockname, (int, sockaddr*, socklen_t*))                                                  \
  X(int, getpeername, (int, sockaddr*, socklen_t*))                                                  \
  X(int, getaddrinfo, (const char*, const char*, const addrinfo*, addrinfo**))                       \
  X(int, getnameinfo, (const sockaddr*, socklen_t, char*, socklen_t, char*, socklen_t, int))         \
  X(int, connect, (int, const sockaddr*, socklen_t))                                                 \
  X(int, accept, (int, sockaddr*, socklen_t*))                                                       \
  X(int, accept4, (int, sockaddr*, socklen_t*, int))                                                 \
  X(int, shutdown, (int, int))                                                                       \
  X(int, getsockopt, (int, int, int, void*, socklen_t*))                                             \
  X(int, setsockopt, (int, int, int, const void*, socklen_t))                                        \
  X(int, close, (int))                                                                               \
  X(void, closefrom, (int))                                                                          \
  X(int, close_range, (unsigned, unsigned, int))                                                     \
  X(int, dup, (int))                                                                                 \
  X(int, dup2, (int, int))                                                                           \
  X(int, dup3, (int, int, int))                                                                      \
  X(int, fcntl, (int, int, ...))                                                                     \
  X(int, ioctl, (int, unsigned long, ...))                                                           \
  X(int, poll, (pollfd*, nfds_t, int))                                                               \
  X(int, ppoll, (pollfd*, nfds_t, const timespec*, const sigset_t*))                                 \
  X(int, select, (int, fd_set*, fd_set*, fd_set*, timeval*))                                         \
  X(int, pselect, (int, fd_set*, fd_set*, fd_set*, const timespec*, const sigset_t*))                \
  X(int, epoll_create, (int))                                                                        \
  X(int, epoll_create1, (int))                                                                       \
  X(int, epoll_ctl, (int, int, int, epoll_event*))                                                   \
  X(int, epoll_wait, (int, epoll_event*, int, int))                                                  \
  X(int, epoll_pwait, (int, epoll_event*, int, int, const sigset_t*))                                \
  X(int, epoll_pwait2, (int, epoll_event*, int, const timespec*, const sigset_t*))                   \
  X(pid_t, fork, ())                                                                                 \
  X(pid_t, _Fork, ())                                                                                \
  X(int, clone, (int (*)(void*), void*, int, void*, ...))                                            \
  X(int, sigaction, (int, const struct sigaction*, struct sigaction*))                               \
  X(sighandler_t, signal, (int, sighandler_t))                                                       \
  X(sighandler_t, __sysv_signal, (int, sighandler_t))                                                \
  X(sighandler_t, sigset, (int, sighandler_t))                                                       \
  X(int, siginterrupt, (int, int))                                                                   \
  X(void, _exit, (int))                                                                              \
  X(void*, dlopen, (const char*, int))                                                               \
  X(void*, dlmopen, (long, const char*, int))                                                        \
  X(long, syscall, (long, ...))                                                                      \
  X(int, execve, (const char*, char* const*, char* const*))                                          \
  X(int, fexecve, (int, char* const*, char* const*))                                                 \
  X(int, posix_spawn,                                                                                \
    (pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*, char* const*, \
     char* const*))                                                                                  \
  X(int, posix_spawnp,                                                                               \
    (pid_t*, const char*, const posix_spawn_file_actions_t*, const posix_spawnattr_t*, char* const*, \
     char* const*))                                                                                  \
  X(int, posix_spawn_file_actions_adddup2, (posix_spawn_file_actions_t*, int, int))                  \
  X(int, system, (const char*))                                                                      \
  X(FILE*, popen, (const char*, const char*))                                                        \
  X(FILE*, fdopen, (int, const char*))                                                               \
  X(int, vdprintf, (int, const char*, va_list))                                                      \
  X(int, fclose, (FILE*))

struct Real {
#define CLAN_X(result, name, parameters) result(*name) parameters = nullptr;
  CLAN_REAL_FUNCTIONS(CLAN_X)
#undef CLAN_X
};

/// Every pointer set. Looked up on the first call, by whoever makes it.
const Real& real();

}  // namespace clan::preload

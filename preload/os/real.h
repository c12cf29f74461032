// The C library's own functions, below ours.
//
// `real()` is for calls an application makes and we pass on: cancellation points and other interposers stay
// in force. What the library does for itself uses `sys::`, plain system calls: nobody can be in between, and
// they are safe in signal handlers and before the loader is done.
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
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "clan/system_call.h"

// System calls are those of this processor, and some handshakes rely on its order of stores and loads: they
// are listed at the end of docs/memory-model.md.
#if !defined(__x86_64__) || defined(__ILP32__)
#error "libclan-preload is for x86-64 only: configure with -DCLAN_PRELOAD=OFF"
#endif

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

namespace sys {

using namespace clan::sys;

inline ssize_t recv(int fd, void* to, size_t n, int flags) {
  return sys::call(SYS_recvfrom, fd, to, n, flags, nullptr, nullptr);
}
inline ssize_t send(int fd, const void* from, size_t n, int flags) {
  return sys::call(SYS_sendto, fd, from, n, flags, nullptr, 0);
}
inline int ioctl(int fd, unsigned long request, void* argument) {
  return static_cast<int>(sys::call(SYS_ioctl, fd, request, argument));
}
inline int getsockopt(int fd, int level, int name, void* value, socklen_t* size) {
  return static_cast<int>(sys::call(SYS_getsockopt, fd, level, name, value, size));
}
inline int setsockopt(int fd, int level, int name, const void* value, socklen_t size) {
  return static_cast<int>(sys::call(SYS_setsockopt, fd, level, name, value, size));
}
inline int epoll_ctl(int epfd, int op, int fd, epoll_event* event) {
  return static_cast<int>(sys::call(SYS_epoll_ctl, epfd, op, fd, event));
}
inline int epoll_wait(int epfd, epoll_event* events, int most, int timeout) {
  return static_cast<int>(sys::call(SYS_epoll_pwait, epfd, events, most, timeout, nullptr, 8));
}
inline int poll(pollfd* fds, nfds_t count, int timeout_ms) {
  timespec ts{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
  return static_cast<int>(sys::call(SYS_ppoll, fds, count, timeout_ms < 0 ? nullptr : &ts, nullptr, 8));
}

}  // namespace sys

/// Of a call's time-out, in ns; kForEver if there is none, or it is longer than anybody lives. False: the
/// kernel would not have it, and errno says so.
constexpr std::int64_t kForEver = -1;
inline bool nanoseconds(const timespec* timeout, std::int64_t* ns) {
  constexpr time_t kMostSeconds = 4'000'000'000;
  *ns = kForEver;
  if (timeout == nullptr) return true;
  if (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1'000'000'000) {
    errno = EINVAL;
    return false;
  }
  if (timeout->tv_sec < kMostSeconds) *ns = timeout->tv_sec * std::int64_t{1'000'000'000} + timeout->tv_nsec;
  return true;
}
inline timespec as_timespec(std::int64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

// The names in a directory, without memory of our own.
class DirectoryReader {
 public:
  explicit DirectoryReader(int fd) : fd_(fd) {}
  const char* next() {
    if (at_ >= size_) {
      size_ = sys::call(SYS_getdents64, fd_, buffer_, sizeof buffer_);
      at_ = 0;
      if (size_ <= 0) return nullptr;
    }
    const char* entry = buffer_ + at_;
    std::uint16_t length;
    std::memcpy(&length, entry + 16, sizeof length);  // struct linux_dirent64: ino, off, reclen, type, name
    at_ += length;
    return entry + 19;
  }

 private:
  int fd_;
  long at_ = 0, size_ = 0;
  alignas(8) char buffer_[4096];
};

/// A child of vfork() runs in the memory of its parent, whose descriptors are not its own. Known of a process
/// that has called note_process() at its start, and after a fork.
bool in_borrowed_memory();
void note_process();

/// errno as it was: what we do for ourselves must not show.
class KeepErrno {
 public:
  KeepErrno() : saved_(errno) {}
  ~KeepErrno() { errno = saved_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  int saved_;
};

}  // namespace clan::preload

#define CLAN_INTERPOSE extern "C" __attribute__((visibility("default")))

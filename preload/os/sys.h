// Plain system calls, for what the library does for itself: no other interposer sees them, and they
// are safe in signal handlers and before the loader is done.
#pragma once

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "clan/detail/system_call.h"

// The system calls are this processor's, and some handshakes rely on its order of stores and loads
// (the end of docs/shared-memory.md).
#if !defined(__x86_64__) || defined(__ILP32__)
#error "libclan-preload is for x86-64 only: configure with -DCLAN_PRELOAD=OFF"
#endif

namespace clan::preload {

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
/// Returns a number of SOL_SOCKET; -1: the kernel gives none.
inline int socket_option(int fd, int name) {
  int value = 0;
  socklen_t size = sizeof value;
  return sys::getsockopt(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
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
  return static_cast<int>(
      sys::call(SYS_ppoll, fds, count, timeout_ms < 0 ? nullptr : &ts, nullptr, 8));
}

}  // namespace sys

// initial-exec: read on the data path
inline constinit thread_local int* t_errno __attribute__((tls_model("initial-exec"))) = nullptr;

/// Returns the thread's errno without a call of the C library each time.
inline int& errno_of_thread() {
  if (t_errno == nullptr) t_errno = &errno;
  return *t_errno;
}
/// Calls `call()`, and restores errno unless it fails with -1.
template <typename Call>
auto keeping_errno(Call&& call) {
  int& error = errno_of_thread();
  const int before = error;
  const auto result = call();
  if (result >= 0) error = before;
  return result;
}

/// Sets errno and returns -1.
inline int fail(int error) {
  errno = error;
  return -1;
}

/// Restores errno: what the library does for itself must not show.
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

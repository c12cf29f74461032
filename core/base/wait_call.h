// Calls past the C library (clan/detail/system_call.h), and waits by poll and epoll: under the
// interposer the engine's waits are not the program's, and no thread is cancelled while it holds a
// mutex. Sanitizer builds use the C library, whose calls tell them what a wait orders.
#pragma once

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <span>

#include "clan/detail/clock.h"
#include "clan/detail/system_call.h"

namespace clan::sys {

/// Makes the call with that number, with the arguments of the C library's `plain`.
template <typename Plain, typename... Arguments>
long past_libc([[maybe_unused]] Plain plain, [[maybe_unused]] long number, Arguments... arguments) {
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  return call(number, arguments...);
#else
  return plain(arguments...);
#endif
}

/// Changes `left`, as the kernel does.
inline int ppoll(pollfd* fds, nfds_t count, timespec* left) {
  return static_cast<int>(past_libc(::ppoll, SYS_ppoll, fds, count, left, nullptr));
}
inline int epoll_ctl(int epoll, int how, int fd, epoll_event* event) {
  return static_cast<int>(past_libc(::epoll_ctl, SYS_epoll_ctl, epoll, how, fd, event));
}
inline int epoll_wait(int epoll, epoll_event* events, int most, int timeout_ms) {
  return static_cast<int>(past_libc(::epoll_wait, SYS_epoll_wait, epoll, events, most, timeout_ms));
}

/// Sleeps until one of them is ready. As futex_wait(): 0, ETIMEDOUT or EINTR.
inline int poll_until(std::span<pollfd> fds, std::uint64_t deadline_ns) {
  timespec left{};
  if (deadline_ns != kNoDeadline) {
    const std::uint64_t now = monotonic_ns();
    const std::uint64_t ns = deadline_ns > now ? deadline_ns - now : 0;
    left = {static_cast<time_t>(ns / 1'000'000'000u), static_cast<long>(ns % 1'000'000'000u)};
  }
  const int n = ppoll(fds.data(), fds.size(), deadline_ns == kNoDeadline ? nullptr : &left);
  return n > 0 ? 0 : n == 0 ? ETIMEDOUT : errno;
}

/// Waits until `ready()`, asked under the lock, or the deadline; returns the last answer. In
/// slices, as the deadline is on another clock than the condition's.
template <typename Condition, typename Lock, typename Ready>
bool wait_until(Condition& changed, Lock& lock, std::uint64_t deadline_ns, Ready&& ready) {
  for (;;) {
    const std::uint64_t now = monotonic_ns();
    if (ready()) return true;
    if (now >= deadline_ns) return false;
    const std::uint64_t slice = std::min<std::uint64_t>(deadline_ns - now, 1'000'000'000u);
    changed.wait_for(lock, std::chrono::nanoseconds(slice));
  }
}

}  // namespace clan::sys

// Time-outs of calls, as timespec and in nanoseconds.
#pragma once

#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "clan/detail/clock.h"

namespace clan::preload {

constexpr std::int64_t kForEver = -1;
/// Converts a call's time-out to ns; kForEver if there is none, or it is over a century. False,
/// with errno: the kernel would refuse it.
inline bool nanoseconds(const timespec* timeout, std::int64_t* ns) {
  constexpr time_t kMostSeconds = 4'000'000'000;
  *ns = kForEver;
  if (timeout == nullptr) return true;
  if (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1'000'000'000)
    return errno = EINVAL, false;
  if (timeout->tv_sec < kMostSeconds)
    *ns = timeout->tv_sec * std::int64_t{1'000'000'000} + timeout->tv_nsec;
  return true;
}
inline timespec as_timespec(std::int64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

/// Converts the time-out of poll() or epoll_wait(); negative: none.
inline std::int64_t ns_of_ms(int ms) { return ms < 0 ? kForEver : ms * std::int64_t{1'000'000}; }
inline int ms_of_ns(std::int64_t ns) {
  return ns < 0 ? -1 : static_cast<int>((ns + 999'999) / 1'000'000);
}

/// A call's time-out in ns, which begins now.
class TimeOut {
 public:
  explicit TimeOut(std::int64_t ns) : ns_(ns), start_(ns > 0 ? monotonic_ns() : 0) {}
  std::int64_t left() const {
    if (ns_ <= 0) return ns_;
    return std::max<std::int64_t>(0, ns_ - static_cast<std::int64_t>(monotonic_ns() - start_));
  }

 private:
  std::int64_t ns_;
  std::uint64_t start_;
};

/// Does what recvmmsg() does, by `receive(msghdr*, flags)`. As in the kernel, the time-out is
/// checked after each message, and what is left of it is returned.
template <typename Receive>
int receive_each(mmsghdr* messages, unsigned count, int flags, timespec* timeout,
                 Receive&& receive) {
  std::int64_t ns;
  if (!nanoseconds(timeout, &ns)) return -1;
  const TimeOut limit(ns);
  unsigned done = 0;
  while (done < count) {
    const int more = done > 0 && (flags & MSG_WAITFORONE) != 0 ? MSG_DONTWAIT : 0;
    const ssize_t got = receive(&messages[done].msg_hdr, (flags & ~MSG_WAITFORONE) | more);
    if (got < 0) return done > 0 ? static_cast<int>(done) : -1;
    messages[done++].msg_len = static_cast<unsigned>(got);
    if (ns == kForEver) continue;
    const std::int64_t left = limit.left();
    *timeout = as_timespec(left);
    if (left == 0) break;
  }
  return static_cast<int>(done);
}

}  // namespace clan::preload

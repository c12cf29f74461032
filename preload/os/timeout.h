// Time-outs of calls, as timespec and in nanoseconds.
#pragma once

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "clan/detail/clock.h"

namespace clan::preload {

/// Converts a call's time-out to ns; kForEver if there is none, or it is longer than anybody lives.
/// False: the kernel would not have it, and errno says so.
constexpr std::int64_t kForEver = -1;
inline bool nanoseconds(const timespec* timeout, std::int64_t* ns) {
  constexpr time_t kMostSeconds = 4'000'000'000;
  *ns = kForEver;
  if (timeout == nullptr) return true;
  if (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= 1'000'000'000) {
    errno = EINVAL;
    return false;
  }
  if (timeout->tv_sec < kMostSeconds)
    *ns = timeout->tv_sec * std::int64_t{1'000'000'000} + timeout->tv_nsec;
  return true;
}
inline timespec as_timespec(std::int64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

/// When a call began and how long it may take, both in ns.
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

}  // namespace clan::preload

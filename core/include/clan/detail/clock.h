// Clocks and deadlines. All times are CLOCK_MONOTONIC nanoseconds.
#pragma once

#include <time.h>

#include <cstdint>
#include <limits>

namespace clan {

inline std::uint64_t monotonic_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<std::uint64_t>(ts.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(ts.tv_nsec);
}

constexpr std::uint64_t kNoDeadline = std::numeric_limits<std::uint64_t>::max();

/// The absolute time `timeout_ms` from now; negative, or beyond all times = never.
inline std::uint64_t deadline_after_ms(std::int64_t timeout_ms) {
  if (timeout_ms < 0) return kNoDeadline;
  const std::uint64_t now = monotonic_ns(), wait_ms = static_cast<std::uint64_t>(timeout_ms);
  return wait_ms < (kNoDeadline - now) / 1'000'000u ? now + wait_ms * 1'000'000u : kNoDeadline;
}

}  // namespace clan

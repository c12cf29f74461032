// For log lines that a peer can bring about.
#pragma once

#include <clan/detail/clock.h>

#include <atomic>
#include <cstdint>

namespace clan::rpc {

/// One for each such line, static where it is logged.
class LogRateLimit {
 public:
  /// True at most once in ten seconds.
  bool allows() {
    constexpr std::uint64_t kPauseNs = 10'000'000'000;
    const std::uint64_t now_ns = monotonic_ns();
    // relaxed, here and below: nothing depends on it
    std::uint64_t next_ns = next_ns_.load(std::memory_order_relaxed);
    if (now_ns < next_ns) return false;
    return next_ns_.compare_exchange_strong(next_ns, now_ns + kPauseNs, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint64_t> next_ns_{0};
};

}  // namespace clan::rpc

// Whether to look for a while before sleeping, beside what the engine's wait policy knows.
//
// On one core the engine yields to the peer a few times before it sleeps. If a stranger computes there, each yield
// hands it a whole slice, milliseconds, where a sleeper is woken at once. So now and then a look is timed, and when
// two in a row took that long the next few thousand waits sleep right away.
#pragma once

#include <clan/clock.h>
#include <clan/message.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace clan::rpc {

class Patience {
 public:
  /// MessageEndpoint::spin(), or false at once.
  bool look(MessageEndpoint& endpoint) {
    if (asleep_for_ > 0) [[unlikely]] {
      --asleep_for_;
      return !endpoint.quiet();
    }
    if (strikes_ == 0 && ++looks_ % kTimedEvery != 0) return endpoint.spin();
    const std::uint64_t begin = monotonic_ns();
    const bool found = endpoint.spin();
    if (monotonic_ns() - begin <= kSliceNs) {
      strikes_ = 0;
      waits_ = kLeastWaits;
    } else if (++strikes_ == kStrikes) {  // one alone is an interruption such as there are everywhere
      asleep_for_ = waits_;
      if (waits_ < kMostWaits) waits_ *= 2;
      --strikes_;  // the next look decides
    }
    return found;
  }

 private:
  static constexpr unsigned kTimedEvery = 4;
  static constexpr unsigned kStrikes = 2;
  static constexpr unsigned kLeastWaits = 2048;
  static constexpr unsigned kMostWaits = 65536;
  static constexpr std::uint64_t kSliceNs = 1'000'000;  ///< no spinning takes that long
  unsigned looks_ = 0;
  unsigned strikes_ = 0;
  unsigned waits_ = kLeastWaits;
  unsigned asleep_for_ = 0;
};

/// A large message is on its way or has just been sent. Its receiver copies it, twice as fast with the sender's
/// help, and what follows comes within the time that copies take: longer than the engine's policy would look for it,
/// and less than two sleeps.
class LargeMessage {
 public:
  /// One of so many bytes, now. Any thread.
  void note(std::size_t bytes) {
    // relaxed: a guess at how long to wait
    until_ns_.store(monotonic_ns() + kLeastNs + std::min(bytes, kMostBytes), std::memory_order_relaxed);
  }
  /// Between two looks of the thread that waits. False: it should not stay awake for one.
  bool lasts() {
    const std::uint64_t until = until_ns_.load(std::memory_order_relaxed);  // relaxed: see note()
    if (until == 0) return false;
    const std::uint64_t now = monotonic_ns();
    if (now < until) {
      if (++looks_ % kYieldEvery != 0) return true;
      ::sched_yield();  // to the other end, if it is on this processor
      if (monotonic_ns() - now < kSliceNs) return true;
    }
    until_ns_.store(0, std::memory_order_relaxed);  // relaxed: see note()
    return false;
  }

 private:
  static constexpr std::uint64_t kLeastNs = 200'000;    ///< and a nanosecond for each byte
  static constexpr std::size_t kMostBytes = 20'000'000;
  static constexpr std::uint64_t kSliceNs = 1'000'000;  ///< a yield that takes so long went to a computation
  static constexpr unsigned kYieldEvery = 32;
  unsigned looks_ = 0;
  std::atomic<std::uint64_t> until_ns_{0};
};

}  // namespace clan::rpc

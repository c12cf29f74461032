// Whether to look for a while before sleeping, beside what the engine's wait policy knows.
//
// On one core the engine yields to the peer a few times before it sleeps. If a stranger computes there, each yield
// hands it a whole slice, milliseconds, where a sleeper is woken at once. So now and then a look is timed, and when
// two in a row took that long the next few thousand waits sleep right away.
#pragma once

#include <clan/clock.h>
#include <clan/message.h>

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

}  // namespace clan::rpc

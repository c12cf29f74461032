// Whether to look for a while before sleeping, beside what the engine's wait policy knows.
//
// On one core the engine yields to the peer a few times before it sleeps. If a stranger computes there, each yield
// hands it a whole slice, milliseconds, where a sleeper is woken at once. So now and then a look is timed, and one
// that took that long has the next few thousand waits sleep right away.
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
    if (++looks_ % kTimedEvery != 0) return endpoint.spin();
    const std::uint64_t begin = monotonic_ns();
    const bool found = endpoint.spin();
    if (monotonic_ns() - begin > kSliceNs) {
      asleep_for_ = kWaits;
      looks_ = kTimedEvery - 1;  // the next look is timed
    }
    return found;
  }

 private:
  static constexpr unsigned kTimedEvery = 8;
  static constexpr unsigned kWaits = 4096;
  static constexpr std::uint64_t kSliceNs = 1'000'000;  ///< no spinning takes that long
  unsigned looks_ = 0;
  unsigned asleep_for_ = 0;
};

}  // namespace clan::rpc

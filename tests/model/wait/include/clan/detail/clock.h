// Shadows <clan/detail/clock.h> in the model of the wait policy: time and yields are the
// simulator's. A call of sched_yield() in namespace clan finds the function here first.
#pragma once

#include <cstdint>
#include <limits>

#include "model/wait/machine.h"

namespace clan {

inline std::uint64_t monotonic_ns() {
  sim::machine().spend(sim::machine().costs().clock);
  return static_cast<std::uint64_t>(sim::machine().now());
}
constexpr std::uint64_t kNoDeadline = std::numeric_limits<std::uint64_t>::max();

inline int sched_yield() {
  sim::machine().yield();
  return 0;
}

}  // namespace clan

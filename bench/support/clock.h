// The clock of every measurement: the CPU's time stamp counter where it is invariant, else
// CLOCK_MONOTONIC. Ticks are comparable between the cores of one machine.
//
// Calibrate once, in the process that starts the measuring processes; they inherit the result.
#pragma once

#include <sched.h>
#include <time.h>

#include <cstdint>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace clan::bench {

class Clock {
 public:
  static void calibrate();

  static std::uint64_t now() {
#if defined(__x86_64__)
    if (tsc_) return __rdtsc();
#endif
    return monotonic_ns();
  }
  static double to_ns(std::uint64_t ticks) { return static_cast<double>(ticks) * ns_per_tick_; }
  static std::uint64_t from_ns(double ns) { return static_cast<std::uint64_t>(ns / ns_per_tick_); }
  static bool uses_tsc() { return tsc_; }

  static std::uint64_t monotonic_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1000000000u +
           static_cast<std::uint64_t>(t.tv_nsec);
  }

 private:
  static inline bool tsc_ = false;
  static inline double ns_per_tick_ = 1.0;
};

/// A polling loop's conscience: costs nothing while the answer comes quickly, and gives the core
/// away when it evidently doesn't. No pause instruction: on recent cores it costs more than a
/// cache line's round trip, and would be what we measure.
class Spinner {
 public:
  void operator()() {
    if (++turns_ % kTurnsPerYield == 0) sched_yield();
  }

 private:
  static constexpr std::uint32_t kTurnsPerYield = 1u << 16;
  std::uint32_t turns_ = 0;
};

}  // namespace clan::bench

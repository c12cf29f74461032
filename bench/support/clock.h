// The clock of every measurement: the CPU's time stamp counter where it is invariant, else
// CLOCK_MONOTONIC. Ticks are comparable between the cores of one machine.
//
// Calibrate once, in the process that starts the measuring processes; they inherit the result.
#pragma once

#include <clan/detail/clock.h>
#include <cpuid.h>
#include <sched.h>
#include <x86intrin.h>

#include <cstdint>

namespace clan::bench {

class Clock {
 public:
  static void calibrate() {
    constexpr unsigned kPowerManagementLeaf = 0x80000007, kInvariantTsc = 1u << 8;
    constexpr std::uint64_t kCalibrationNs = 50'000'000;
    unsigned a = 0, b = 0, c = 0, d = 0;
    tsc_ = __get_cpuid(kPowerManagementLeaf, &a, &b, &c, &d) != 0 && (d & kInvariantTsc) != 0;
    if (!tsc_) return;
    const std::uint64_t wall = monotonic_ns(), ticks = __rdtsc();
    while (monotonic_ns() - wall < kCalibrationNs) {
    }
    ns_per_tick_ =
        static_cast<double>(monotonic_ns() - wall) / static_cast<double>(__rdtsc() - ticks);
  }

  static std::uint64_t now() { return tsc_ ? __rdtsc() : monotonic_ns(); }
  static double to_ns(std::uint64_t ticks) { return static_cast<double>(ticks) * ns_per_tick_; }
  static double ns_since(std::uint64_t begin) { return to_ns(now() - begin); }
  static std::uint64_t from_ns(double ns) { return static_cast<std::uint64_t>(ns / ns_per_tick_); }
  static bool uses_tsc() { return tsc_; }

 private:
  static inline bool tsc_ = false;
  static inline double ns_per_tick_ = 1.0;
};

/// Gives the core away now and then in a loop that polls for long; costs nothing while the answer
/// comes quickly. No pause instruction: on recent cores it costs more than a cache line's round
/// trip.
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

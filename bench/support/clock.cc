#include "support/clock.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace clan::bench {

namespace {

bool invariant_tsc() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kPowerManagementLeaf = 0x80000007;
  if (__get_cpuid(kPowerManagementLeaf, &a, &b, &c, &d) == 0) return false;
  return (d & (1u << 8)) != 0;
#else
  return false;
#endif
}

}  // namespace

void Clock::calibrate() {
#if defined(__x86_64__)
  tsc_ = invariant_tsc();
  if (!tsc_) return;
  constexpr std::uint64_t kCalibrationNs = 50'000'000;
  const std::uint64_t wall = monotonic_ns();
  const std::uint64_t ticks = __rdtsc();
  while (monotonic_ns() - wall < kCalibrationNs) {
  }
  ns_per_tick_ =
      static_cast<double>(monotonic_ns() - wall) / static_cast<double>(__rdtsc() - ticks);
#endif
}

}  // namespace clan::bench

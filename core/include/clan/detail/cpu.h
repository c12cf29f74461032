// What a spinning thread asks the processor and the scheduler.
#pragma once

#include <sched.h>

#include <cstddef>
#include <cstdint>

namespace clan {

/// ABI: the size every shared structure is aligned to. Not
/// std::hardware_destructive_interference_size, which follows compiler flags.
constexpr std::size_t kCacheLine = 64;

inline void cpu_pause() { __builtin_ia32_pause(); }

/// Asks for a cache line in order to write it; returns at once.
inline void prefetch_for_write(const void* line) {
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
}

/// The processor this thread runs on, + 1 so that 0 can mean "not known". Costs about a nanosecond
/// where glibc has registered rseq.
inline std::uint16_t current_cpu_tag() {
  int cpu = sched_getcpu();
  return cpu < 0 || cpu >= 0xffff ? 0 : static_cast<std::uint16_t>(cpu + 1);
}

/// A time that all processors count alike, in units of a few ns, to put events of several threads
/// in order. No clock: nothing is known of its zero, and it may stand still or jump where the
/// machine sleeps. About 10 ns.
inline std::uint64_t order_stamp() { return __builtin_ia32_rdtsc() >> 4; }

}  // namespace clan

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

/// Returns this thread's processor + 1; 0: not known. About a nanosecond where glibc uses rseq.
inline std::uint16_t current_cpu_tag() {
  int cpu = sched_getcpu();
  return cpu < 0 || cpu >= 0xffff ? 0 : static_cast<std::uint16_t>(cpu + 1);
}

/// Orders events of several threads: a time that all processors share, in units of a few ns. Not a
/// clock: its zero is unknown, and it may stop or jump when the machine sleeps. About 10 ns.
inline std::uint64_t order_stamp() { return __builtin_ia32_rdtsc() >> 4; }

}  // namespace clan

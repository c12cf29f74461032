// What a spinning thread asks the processor and the scheduler.
#pragma once

#include <sched.h>

#include <cstddef>
#include <cstdint>

namespace clan {

/// ABI: the size every shared structure is aligned to. Not
/// std::hardware_destructive_interference_size, which follows compiler flags.
constexpr std::size_t kCacheLine = 64;

inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm("yield" ::: "memory");
#endif
}

/// The processor this thread runs on, + 1 so that 0 can mean "not known". Costs about a nanosecond
/// where glibc has registered rseq.
inline std::uint16_t current_cpu_tag() {
  int cpu = sched_getcpu();
  return cpu < 0 || cpu >= 0xffff ? 0 : static_cast<std::uint16_t>(cpu + 1);
}

}  // namespace clan

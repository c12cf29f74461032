// CPU time of processes, user and system, of all their threads. Header only, for load programs that
// link nothing else of clan-bench.
#pragma once

#include <sys/types.h>
#include <time.h>

namespace clan::bench {

inline double cpu_ns_by(clockid_t clock) {
  timespec t{};
  if (clock_gettime(clock, &t) != 0) return 0;
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

/// Nanoseconds, of this process.
inline double cpu_ns() { return cpu_ns_by(CLOCK_PROCESS_CPUTIME_ID); }

/// Nanoseconds, of another process, until it has been waited for. 0: there is no such process.
inline double cpu_ns_of(pid_t process) {
  clockid_t clock;
  return clock_getcpuclockid(process, &clock) == 0 ? cpu_ns_by(clock) : 0;
}

}  // namespace clan::bench

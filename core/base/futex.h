// Futex wait and wake on a word in shared memory. std::atomic::wait in libstdc++ uses the
// process-private futex, which does not reach other processes.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>

#include "clan/detail/clock.h"

namespace clan {

/// Sleeps while `word` is `expected`. Returns 0 when woken or it differs, ETIMEDOUT, or EINTR.
inline int futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                      std::uint64_t deadline_ns) {
  timespec ts{};
  timespec* timeout = nullptr;
  if (deadline_ns != kNoDeadline) {
    ts.tv_sec = static_cast<time_t>(deadline_ns / 1'000'000'000u);
    ts.tv_nsec = static_cast<long>(deadline_ns % 1'000'000'000u);
    timeout = &ts;
  }
  // FUTEX_WAIT_BITSET takes an absolute CLOCK_MONOTONIC time.
  long rc = ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, timeout, nullptr,
                      FUTEX_BITSET_MATCH_ANY);
  if (rc == 0 || errno == EAGAIN) return 0;
  return errno;
}

/// Wakes up to `count` sleepers.
inline void futex_wake(const std::atomic<std::uint32_t>& word, int count = INT_MAX) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, count, nullptr, nullptr, 0);
}

}  // namespace clan

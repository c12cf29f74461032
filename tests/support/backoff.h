// What a thread of a test does between two checks of what another thread is to do.
//
// sched_yield() is no way to wait on a busy machine: whatever else wants the processor has a turn
// of milliseconds each time, and 100000 turns are minutes. A thread that sleeps is let in at once
// when its time has come.
#pragma once

#include <ctime>

#include "clan/detail/cpu.h"

namespace clan::test {

class Backoff {
 public:
  /// Spins for a few microseconds, so that threads on two processors meet at full speed; after that
  /// sleeps for some 50 us, so that two on one processor take turns.
  void wait() {
    if (++looks_ <= kSpins) return cpu_pause();
    const timespec shortest{0, 1};
    ::nanosleep(&shortest, nullptr);
  }
  /// What was waited for has come.
  void reset() { looks_ = 0; }

 private:
  static constexpr unsigned kSpins = 200;
  unsigned looks_ = 0;
};

}  // namespace clan::test

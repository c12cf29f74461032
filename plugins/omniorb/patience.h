// Patience: waiting awake, for threads that share processors with those they wait for.
//
// An ORB has a thread for each connection that serves, and calls make them take turns: more threads than processors
// are the rule. Each looks and lets the next one run (sched_yield), which costs a microsecond; to sleep and be woken
// costs two system calls and an interrupt of another processor, tens of microseconds on virtual machines. Measured with
// 3 clients on 2 processors: 570,000 calls a second like this, 32,000 by sleeping.
//
// Beside a computation of somebody else's every yield takes a whole slice of time. The thread that notices (kGapNs,
// again within kFewYields) does without for 64 times as long, and longer if it is so again: asleep it is preferred by
// the scheduler when it wakes. Threads that all yield are away as long, too, but seldom.
//
// A peer that has always answered by the time of the first yield runs on this processor: no use to look before.
//
// One for each place where a thread waits. Thread-safety: one thread at a time; what is learned of others is the
// calling thread's.
#pragma once

#include <sched.h>

#include <cstdint>

#include <clan/clock.h>

namespace clan::orb {

class Patience {
 public:
  /// Until `ready()`, at most `us` microseconds. False: the caller should sleep.
  template <typename Ready>
  bool wait(Ready&& ready, std::uint32_t us) {
    if (us == 0) return ready();
    for (int i = same_core_ >= kSure ? kFirstLooks - 1 : 0; i < kFirstLooks; ++i) {
      if (ready()) return true;
    }
    std::uint64_t now = monotonic_ns();
    if (now < impatient_until_ns_) return ready();
    const std::uint64_t end = now + std::uint64_t{us} * 1000;
    for (int yields = 1; now < end; ++yields) {
      ::sched_yield();
      const std::uint64_t before = now;
      now = monotonic_ns();
      ++yields_;
      if (now - before > kGapNs) [[unlikely]] note_gap(now, now - before);
      if (ready()) {
        same_core_ = yields == 1 ? same_core_ + (same_core_ < kSure) : 0;
        return true;
      }
      if (now < impatient_until_ns_) return false;
    }
    return false;
  }

 private:
  static constexpr int kFirstLooks = 200;             ///< without a clock: the answer of a peer that is running
  static constexpr std::uint64_t kGapNs = 1'000'000;
  static constexpr std::uint64_t kFewYields = 16;
  static constexpr std::uint64_t kPausesOfGap = 64;
  static constexpr std::uint64_t kMostPauseNs = 2'000'000'000;

  static void note_gap(std::uint64_t now, std::uint64_t gap_ns) {
    const bool dense = yields_ < kFewYields;
    yields_ = 0;
    if (!dense) return;
    const bool again = now - impatient_until_ns_ < 4 * pause_ns_;
    pause_ns_ = kPausesOfGap * gap_ns + (again ? 2 * pause_ns_ : 0);
    if (pause_ns_ > kMostPauseNs) pause_ns_ = kMostPauseNs;
    impatient_until_ns_ = now + pause_ns_;
  }

  static constexpr int kSure = 8;
  int same_core_ = 0;  ///< waits in a row that ended with the first yield
  static inline thread_local std::uint64_t impatient_until_ns_ = 0;
  static inline thread_local std::uint64_t pause_ns_ = 0;
  static inline thread_local std::uint64_t yields_ = 0;  ///< since the last gap
};

}  // namespace clan::orb

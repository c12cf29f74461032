// What a thread notices of others that want its processor, for the wait policy (wait.h).
//
// A thread that was off the processor for a millisecond has run beside a computation: spinning
// loses it the scheduler's preference for threads that sleep, and each yield takes a time slice. So
// it does not yield, wherever it waits, for four times as long as it was away, and four times
// longer each time that recurs; nor does it spin in a crowd, or for a peer that may be on its own
// core. Many threads that all yield also take that long at times: a long yield counts only if long
// yields take a quarter of the thread's time.
#pragma once

#include <clan/detail/clock.h>
#include <clan/detail/preemption.h>
#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace clan {

/// What a thread knows of others that want its processor. Written and read by that thread only.
class Contention {
 public:
  /// interrupts and short work of others take less
  static constexpr std::uint64_t kGapNs = 1'000'000;

  /// The thread should not yield now, nor spin for a peer that may be on its core.
  bool lasts(std::uint64_t now_ns) { return until_ns_ != 0 && now_ns < until_ns_; }
  bool known() const { return until_ns_ != 0; }
  /// Between two looks `gap_ns` have gone by.
  void note_gap(std::uint64_t now_ns, std::uint64_t gap_ns) {
    if (gap_ns < kGapNs) return;
    const bool again = until_ns_ != 0 && now_ns - until_ns_ < 2 * pause_ns_;
    const std::uint64_t pause_ns =
        std::max(kGapsOfPause * gap_ns, again ? kGapsOfPause * pause_ns_ : 0);
    pause_ns_ = std::min(pause_ns, kMaxPauseNs);
    until_ns_ = now_ns + pause_ns_;
  }
  /// A yield has taken `gap_ns`; in it other threads ran, or none.
  void note_yield(std::uint64_t now_ns, std::uint64_t gap_ns, bool others_ran) {
    // A longer yield means that a computation ran, not a crowd.
    const bool crowd = others_ran && gap_ns < kGapNs;
    crowd_ = crowd ? std::min(crowd_ + 1, kMostCrowd) : crowd_ - (crowd_ > 0);
    if (gap_ns < kGapNs || !others_ran) return;
    const std::uint64_t last_ns = std::exchange(long_yield_ns_, now_ns);
    if (now_ns - last_ns < kPartOfTime * gap_ns) note_gap(now_ns, gap_ns);
  }
  /// Yields once; true: others ran. Moves `now` from before to after. Restarts `watch`.
  bool yield(std::uint64_t& now, PreemptionWatch& watch) {
    watch.begin();
    sched_yield();
    const bool switched = watch.happened();
    const std::uint64_t took = monotonic_ns() - now;
    now += took;
    watch.begin();
    const bool first = shortest_yield_ns_ == 0;
    const bool others_ran =
        PreemptionWatch::works() ? switched : !first && took > 2 * shortest_yield_ns_;
    if (!others_ran && (first || took < shortest_yield_ns_)) shortest_yield_ns_ = took;
    note_yield(now, took, others_ran);
    return others_ran;
  }
  /// Others ran in the last yields: the next look is worth one, too.
  bool crowded() const { return crowd_ >= kCrowd; }
  /// How long to spin between two yields.
  std::uint64_t yield_every_ns() const { return crowded() ? 0 : kYieldPart * shortest_yield_ns_; }

 private:
  static constexpr std::uint64_t kGapsOfPause = 4, kPartOfTime = 4;
  static constexpr std::uint64_t kYieldPart = 25;  ///< of the time between two is spent in one
  static constexpr std::uint64_t kMaxPauseNs = 2'000'000'000;
  static constexpr int kCrowd = 2;
  static constexpr int kMostCrowd = 8;
  std::uint64_t until_ns_ = 0, pause_ns_ = 0;
  std::uint64_t long_yield_ns_ = 0;  ///< when the last long one ended
  int crowd_ = 0;                    ///< yields in which others ran, less those in which none did
  std::uint64_t shortest_yield_ns_ = 0;  ///< what one costs that finds nobody; 0: not known yet
};
inline constinit thread_local Contention t_contention;

}  // namespace clan

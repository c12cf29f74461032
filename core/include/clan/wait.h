// The wait policy: which thread spins, for how long, and which sleeps. One place for all of CLAN.
//
// To sleep and be woken costs some microseconds of processor time, and 3 to 45 us until an idle
// core runs again. To spin costs nothing in latency, and everything if somebody else needs this
// core to make progress. So:
//
//   1. a first burst of looks, without a clock: most waits of a busy connection end there.
//   2. the peer was last seen on this very core: it cannot be running. Yield to it, a few times,
//      then sleep.
//   3. spin as long as what past waits took makes it worth while: for the short ones of a busy pair
//      always, for those up to WaitOptions::max_spin_us while the peer is awake. A peer that had to
//      be woken for our last message takes a wake-up longer; then only one wait in 64 finds out
//      whether it spins by now, and what waits take that do not sleep. Where waits took several
//      times as long as all that (a request each millisecond), a thread sleeps after a few looks:
//      two short waits are enough to change that.
//   4. a thread that spins yields every few microseconds, which costs little while no other thread
//      wants its processor. Where others ran in its yields, more threads wait than there are
//      processors, and one of them may be its peer: it yields between any two looks, until its
//      yields are empty again. (3 clients of one server on 2 processors: 570,000 calls a second
//      like this, 32,000 by sleeping.)
//   5. a thread that was off the processor for a millisecond has run beside a computation. A thread
//      that spins beside one loses the preference that the scheduler gives to threads that sleep,
//      and yields for a whole slice of time. So it neither spins nor yields for a while, wherever
//      it waits: four times as long as it was away, and four times longer each time it is so again.
//      Many threads that all yield take as long now and then, too: of yields, only the second long
//      one within 16 counts.
//   6. sleep until the tripwire, event queue or doorbell wakes us.
//
// A Waiter belongs to one waiting place (one direction of a connection, one event queue) and keeps
// what it learned. Several threads may wait at one place: they share what they learn, roughly.
#pragma once

#include <clan/clock.h>
#include <clan/context.h>
#include <clan/cpu.h>
#include <clan/preemption.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

namespace clan {

/// What a thread knows of others that want its processor. Written and read by that thread only.
class Contention {
 public:
  /// interrupts and short work of others take less
  static constexpr std::uint64_t kGapNs = 1'000'000;
  static constexpr unsigned kFewYields = 16;

  /// The thread should not spin now.
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
    crowd_ = others_ran ? std::min(crowd_ + 1, kMostCrowd) : crowd_ - (crowd_ > 0);
    ++yields_;
    if (gap_ns < kGapNs) return;
    if (yields_ <= kFewYields) note_gap(now_ns, gap_ns);
    yields_ = 0;
  }
  /// Others ran in the last yields: the next look is worth one, too.
  bool crowded() const { return crowd_ >= kCrowd; }

 private:
  static constexpr std::uint64_t kGapsOfPause = 4;
  static constexpr std::uint64_t kMaxPauseNs = 2'000'000'000;
  static constexpr int kCrowd = 2;
  static constexpr int kMostCrowd = 8;
  std::uint64_t until_ns_ = 0, pause_ns_ = 0;
  int crowd_ = 0;                 ///< yields in which others ran, less those in which none did
  unsigned yields_ = kFewYields;  ///< since the last long one
};
inline constinit thread_local Contention t_contention;

/// What is known of the peer that is waited for.
struct Awaited {
  std::uint16_t cpu = 0;  ///< its current_cpu_tag() when last heard of, 0 = unknown
  bool slept = false;     ///< it had to be woken for the last message to it
  /// what it has been given to do keeps it awake about that long
  std::uint64_t works_until_ns = 0;
};

/// What came of a Waiter::wait().
enum class Waited {
  kReady,     ///< ready() or look() has said so
  kAgain,     ///< the thread has slept, or may not sleep: to be looked at again
  kTimedOut,  ///< the deadline has passed and there was no sleep
};

class Waiter {
 public:
  explicit Waiter(const WaitOptions& options) : options_(options) {}

  /// One step of a wait, around which the caller has a loop that looks: spins as spin() does, and
  /// where that was not enough has the thread sleep. `sleep()` arms what will wake the thread,
  /// looks once more and sleeps; it answers whether the thread has slept.
  template <typename Ready, typename Sleep, typename Look>
  Waited wait(Ready&& ready, Awaited peer, std::uint64_t deadline_ns, Sleep&& sleep, Look&& look) {
    if (spin(ready, peer, deadline_ns, look)) return Waited::kReady;
    if (deadline_ns != kNoDeadline && monotonic_ns() >= deadline_ns) return Waited::kTimedOut;
    if (may_sleep() && sleep()) slept();
    return Waited::kAgain;
  }
  template <typename Ready, typename Sleep>
  Waited wait(Ready&& ready, Awaited peer, std::uint64_t deadline_ns, Sleep&& sleep) {
    return wait(ready, peer, deadline_ns, sleep, [] { return false; });
  }

  /// Spins until `ready()` (true at once if it is), at most as long as seems worth while. True =
  /// ready. False = the caller should arm, look again and sleep. `look()` is called about once a
  /// microsecond, for what costs too much to ask each time; true ends the wait, too.
  template <typename Ready, typename Look>
  bool spin(Ready&& ready, Awaited peer, std::uint64_t deadline_ns, Look&& look) {
    if (options_.mode == WaitOptions::Mode::kSleep) {
      set_start(0);
      return ready();
    }
    Contention& contention = t_contention;
    const bool poll = options_.mode == WaitOptions::Mode::kPoll;
    if (!poll && contention.known()) [[unlikely]] {
      const std::uint64_t now = monotonic_ns();
      if (contention.lasts(now)) {
        set_start(now);
        return ready();
      }
    }
    // Without pause, which takes up to 140 cycles: as much as the cache line that is on its way. In
    // a crowd whatever is waited for needs this processor, most likely.
    const int burst = contention.crowded() || is_long(expected_ns()) ? kBurst : kFirstBurst;
    for (int i = 0; i < burst; ++i) {
      if (ready()) {
        if (i > 0 && expected_ns() > kBurstNs) expect(kBurstNs);
        return true;
      }
    }
    const std::uint64_t start = monotonic_ns();
    set_start(start);
    if (poll) return this->poll(ready, look, deadline_ns);
    if (peer.cpu != 0 && peer.cpu == current_cpu_tag() && peer.works_until_ns < start &&
        !is_long(expected_ns())) {
      return yield_to_peer(ready, look, start);
    }
    bool tries = false;
    const std::uint64_t end =
        std::max(start + next_budget(peer.slept, &tries), peer.works_until_ns);
    return end == start ? ready() : spin_for(ready, look, start, std::min(deadline_ns, end), tries);
  }
  template <typename Ready>
  bool spin(Ready&& ready, Awaited peer, std::uint64_t deadline_ns = kNoDeadline) {
    return spin(ready, peer, deadline_ns, [] { return false; });
  }

  /// False: the thread must not sleep, only call spin() again after looking whether all is well.
  bool may_sleep() const { return options_.mode != WaitOptions::Mode::kPoll; }

  /// After a sleep: how long the whole wait took.
  void slept() {
    const std::uint64_t start = start_ns();
    if (start != 0) expect(monotonic_ns() - start);
  }

  /// How long a wait that begins now would spin, if its peer is awake.
  std::uint64_t budget_ns() const { return budget_for(expected_ns(), false); }

 private:
  static constexpr int kFirstBurst = 256;
  static constexpr int kBurst = 32;
  static constexpr int kSameCoreYields = 6;  ///< in which no other thread ran
  static constexpr std::uint32_t kTryEvery = 64;
  static constexpr std::uint64_t kBurstNs = 500;
  static constexpr std::uint64_t kSwitchNs = 700;  ///< a yield to another thread takes longer
  static constexpr std::uint64_t kYieldEveryNs = 5'000;
  /// spinning costs no more time of the processor than sleeping
  static constexpr std::uint64_t kShortNs = 10'000;
  /// a peer that is awake often answers within that
  static constexpr std::uint64_t kAwakeNs = 3'000;

  std::uint64_t max_ns() const { return std::uint64_t{options_.max_spin_us} * 1000; }
  // relaxed: a guess
  std::uint64_t start_ns() const { return start_ns_.load(std::memory_order_relaxed); }
  // relaxed: as above
  void set_start(std::uint64_t ns) { start_ns_.store(ns, std::memory_order_relaxed); }
  // relaxed: as above
  std::uint64_t expected_ns() const { return expected_ns_.load(std::memory_order_relaxed); }
  bool is_long(std::uint64_t expected) const { return expected > 3 * max_ns(); }
  // A wait has taken so long.
  void expect(std::uint64_t ns) {
    const std::uint64_t next = (3 * expected_ns() + std::min(ns, 4 * max_ns())) / 4;
    expected_ns_.store(next, std::memory_order_relaxed);  // relaxed: a guess
  }

  // What waits without a sleep take, and those before were with one.
  void expect_only(std::uint64_t ns) {
    expected_ns_.store(ns, std::memory_order_relaxed);  // relaxed: a guess
  }

  std::uint64_t budget_for(std::uint64_t expected, bool peer_slept) const {
    if (expected <= kShortNs) return 2 * max_ns();  // one that takes longer is an exception
    if (peer_slept || is_long(expected)) return 0;
    return expected <= max_ns() ? max_ns() : std::min(max_ns(), kAwakeNs);
  }

  std::uint64_t next_budget(bool peer_slept, bool* tries) {
    const std::uint64_t expected = expected_ns();
    const std::uint64_t budget = budget_for(expected, peer_slept);
    if (budget >= max_ns() || is_long(expected)) return budget;
    const std::uint32_t turn = turns_.load(std::memory_order_relaxed) + 1;  // relaxed: a guess
    turns_.store(turn, std::memory_order_relaxed);                          // relaxed: as above
    *tries = turn % kTryEvery == 0;
    return *tries ? 2 * max_ns() : budget;
  }

  template <typename Ready, typename Look>
  bool poll(Ready&& ready, Look&& look, std::uint64_t deadline_ns) {
    for (unsigned n = 0; n < 64; ++n) {
      for (int i = 0; i < 1024; ++i) {
        if (ready()) return true;
        cpu_pause();
      }
      if (look()) return true;
      if (deadline_ns != kNoDeadline && monotonic_ns() >= deadline_ns) return false;
    }
    sched_yield();
    return ready();
  }

  // Lets other threads run. `now`: the time before, and afterwards that after the yield. Did others
  // run? A watch tells it exactly, and costs 0.1 us in each switch; without one what a yield takes
  // has to do.
  static bool yield(Contention& contention, std::uint64_t& now, PreemptionWatch* watch) {
    if (watch != nullptr) watch->begin();
    sched_yield();
    const std::uint64_t before = std::exchange(now, monotonic_ns());
    const bool others_ran = now - before >= kSwitchNs && (watch == nullptr || watch->happened());
    if (watch != nullptr) watch->begin();
    contention.note_yield(now, now - before, others_ran);
    return others_ran;
  }

  template <typename Ready, typename Look>
  bool yield_to_peer(Ready&& ready, Look&& look, std::uint64_t start) {
    Contention& contention = t_contention;
    std::uint64_t now = start;
    for (int empty = 0; empty < kSameCoreYields && now - start < 2 * max_ns();) {
      const bool others_ran = yield(contention, now, nullptr);
      if (ready() || look()) {
        expect(now - start);
        return true;
      }
      if (contention.lasts(now)) return false;
      empty += !others_ran;
    }
    return false;
  }

  template <typename Ready, typename Look>
  bool spin_for(Ready&& ready, Look&& look, std::uint64_t start, std::uint64_t end, bool tries) {
    Contention& contention = t_contention;
    PreemptionWatch preemption;
    std::uint64_t yield_at = start + (contention.crowded() ? 0 : kYieldEveryNs);
    for (std::uint64_t now = start; now < end;) {
      bool there = false, on = true;
      if (now >= yield_at) {
        yield(contention, now, contention.crowded() ? nullptr : &preemption);
        on = !contention.lasts(now);
        yield_at = now + (contention.crowded() ? 0 : kYieldEveryNs);
        there = ready() || look();
      } else {
        for (int i = 0; i < kBurst && !there; ++i) {
          there = ready();
          if (!there) cpu_pause();
        }
        if (!there) there = look();
        const std::uint64_t before = std::exchange(now, monotonic_ns());
        on = now - before < Contention::kGapNs || !preemption.happened();
        if (!on) contention.note_gap(now, now - before);
      }
      if (there) {
        tries ? expect_only(now - start) : expect(now - start);
        return true;
      }
      if (!on) return ready();
    }
    return ready();
  }

  WaitOptions options_;
  std::atomic<std::uint64_t> expected_ns_{20'000};  ///< how long a wait takes, by those before
  /// of the wait, once its first burst has not been enough
  std::atomic<std::uint64_t> start_ns_{0};
  /// of waits for which spinning does not seem worth while
  std::atomic<std::uint32_t> turns_{0};
};

}  // namespace clan

// The wait policy: which thread spins, for how long, and which sleeps. One place for all of CLAN.
//
// Sleeping costs microseconds of processor time, and 3 to 45 us until an idle core runs again; a
// trip between two busy cores 110. Spinning costs everything if others need this core. So:
//
//   1. a first burst of looks, without a clock: most waits of a busy connection end there.
//   2. the peer was last seen on this very core: it cannot be running. Yield to it; sleep at once
//      where past waits took longer than WaitOptions::max_spin_us, except during the tries of 3.
//      If nobody runs in a few yields, the peer has left the core: go on with 3.
//   3. spin where past waits were so short that a sleep costs more: up to twice
//      WaitOptions::max_spin_us where they took at most a fifth of it, up to once that where they
//      took at most half and the peer is awake. Else sleep. In every 1,024 waits 16 in a row spin
//      all the same, as each end may sleep only because the other does; not where they took three
//      times as long.
//   4. a thread that spins yields now and then. Where others ran then, its peer may be one of them:
//      it yields between any two looks, until its yields are empty. What yields and look() cost is
//      measured: together they take at most a tenth of the time of a thread that spins.
//   5. a thread that was off the processor for a millisecond does not yield for a while, which
//      would take a time slice. It spins only outside a crowd, for a peer last seen elsewhere.
//   6. sleep until the tripwire, event queue or doorbell wakes us.
//
// A Waiter belongs to one place (a direction of a connection, an event queue) and keeps what it
// learned. Several threads may wait at one place: they share what they learn, roughly.
#pragma once

#include <clan/context.h>
#include <clan/detail/clock.h>
#include <clan/detail/contention.h>
#include <clan/detail/cpu.h>
#include <clan/detail/preemption.h>
#include <clan/detail/wait_history.h>
#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

namespace clan {

/// What came of a Waiter::wait().
enum class WaitResult {
  kReady,     ///< ready() or look() has said so
  kAgain,     ///< the thread has slept, or may not sleep: to be checked again
  kTimedOut,  ///< the deadline has passed and there was no sleep
};

class Waiter {
  struct NoLook {
    bool operator()() const { return false; }
  };

 public:
  explicit Waiter(const WaitOptions& options)
      : mode_(options.mode), past_(std::uint64_t{options.max_spin_us} * 1000) {}

  /// Spins as spin(), then sleeps, once. `sleep()` arms what will wake the thread, looks once more,
  /// sleeps, and returns whether it has slept.
  template <typename Ready, typename Sleep, typename Look = NoLook>
  WaitResult wait(Ready&& ready, PeerHint peer, std::uint64_t deadline_ns, Sleep&& sleep,
                  Look&& look = {}) {
    if (spin(ready, peer, deadline_ns, look)) return WaitResult::kReady;
    if (deadline_ns != kNoDeadline && monotonic_ns() >= deadline_ns) return WaitResult::kTimedOut;
    if (may_sleep() && sleep()) slept();
    return WaitResult::kAgain;
  }

  /// Spins until `ready()`, as long as seems worth while. False: arm, look again and sleep.
  /// `look()` is for expensive checks, called the less often the more it costs; true ends the wait.
  template <typename Ready, typename Look = NoLook>
  bool spin(Ready&& ready, PeerHint peer, std::uint64_t deadline_ns = kNoDeadline,
            Look&& look = {}) {
    if (mode_ == WaitOptions::Mode::kSleep) {
      past_.set_start(0);
      return ready();
    }
    Contention& contention = t_contention;
    const bool poll = mode_ == WaitOptions::Mode::kPoll;
    if (!poll && contention.known()) [[unlikely]] {
      const std::uint64_t now = monotonic_ns();
      const bool may_be_here = peer.cpu == 0 || peer.cpu == current_cpu_tag();
      if (contention.lasts(now) && (may_be_here || contention.crowded())) {
        past_.set_start(now);
        return ready();
      }
    }
    // No pause: it takes as long as the transfer of a cache line.
    const int burst = contention.crowded() || past_.is_long() ? kBurst : kFirstBurst;
    for (int i = 0; i < burst; ++i) {
      if (ready()) {
        if (i > 0 && past_.expected_ns() != 0) past_.expect(0);
        return true;
      }
    }
    const std::uint64_t start = monotonic_ns();
    past_.set_start(start);
    if (poll) return this->poll(ready, look, deadline_ns);
    bool tries = false;
    const std::uint64_t budget = past_.next_budget(peer.slept, &tries);
    if (peer.cpu != 0 && peer.cpu == current_cpu_tag() && peer.works_until_ns < start) {
      if (past_.expected_ns() > past_.max_ns() && !tries) return ready();
      if (const auto there = yield_to_peer(ready, look, start)) return *there;
    }
    const std::uint64_t end = std::max(start + budget, peer.works_until_ns);
    return end == start ? ready() : spin_for(ready, look, start, std::min(deadline_ns, end), tries);
  }

  /// False: the thread must not sleep, only check that all is well and spin again.
  bool may_sleep() const { return mode_ != WaitOptions::Mode::kPoll; }
  /// After a sleep: how long the whole wait took.
  void slept() {
    const std::uint64_t start = past_.start_ns();
    if (start != 0) past_.expect(monotonic_ns() - start);
  }

  /// How long a wait that begins now would spin, if its peer is awake.
  std::uint64_t budget_ns() const { return past_.budget_ns(); }

 private:
  static constexpr int kFirstBurst = 256;
  static constexpr int kBurst = 32;
  static constexpr int kSameCoreYields = 6;       ///< in which no other thread ran
  static constexpr std::uint64_t kLookPart = 15;  ///< of the time between two is spent in one

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

  template <typename Ready, typename Look>
  std::optional<bool> yield_to_peer(Ready&& ready, Look&& look, std::uint64_t start) {
    Contention& contention = t_contention;
    PreemptionWatch watch;
    for (std::uint64_t now = start, empty = 0; now - start < 2 * past_.max_ns();) {
      const bool others_ran = contention.yield(now, watch);
      if (ready() || look()) {
        past_.expect(now - start);
        return true;
      }
      if (contention.lasts(now)) return false;
      if (!others_ran && ++empty == kSameCoreYields) return std::nullopt;  // nobody wants the core
    }
    return false;
  }

  template <typename Ready, typename Look>
  bool spin_for(Ready&& ready, Look&& look, std::uint64_t start, std::uint64_t end, bool tries) {
    Contention& contention = t_contention;
    PreemptionWatch preemption;
    // Once at least: a hypervisor may have stretched the only yield so far.
    const std::uint64_t every = std::min(contention.yield_every_ns(), (end - start) / 2);
    std::uint64_t yield_at = contention.lasts(start) ? end : start + every;
    std::uint64_t look_at = start;
    for (std::uint64_t now = start; now < end;) {
      bool there = false, on = true;
      if (now >= yield_at) {
        contention.yield(now, preemption);
        on = !contention.lasts(now);
        yield_at = now + contention.yield_every_ns();
        there = ready();
      } else {
        for (int i = 0; i < kBurst && !there; ++i) {
          there = ready();
          if (!there) cpu_pause();
        }
        const std::uint64_t before = std::exchange(now, monotonic_ns());
        on = now - before < Contention::kGapNs || !preemption.happened();
        if (!on) contention.note_gap(now, now - before);
      }
      if constexpr (!std::is_same_v<std::remove_reference_t<Look>, NoLook>) {
        if (!there && now >= look_at) {
          there = look();
          const std::uint64_t before = std::exchange(now, monotonic_ns());
          look_at = now + kLookPart * (now - before);
        }
      }
      if (there) {
        tries ? past_.expect_only(now - start) : past_.expect(now - start);
        return true;
      }
      if (!on) return ready();
    }
    return ready();
  }

  const WaitOptions::Mode mode_;
  WaitHistory past_;
};

}  // namespace clan

// The wait policy: who spins, for how long, and who sleeps. One place for all of CLAN.
//
// Sleeping and being woken costs about 40 us on an idle core; spinning costs nothing in latency and
// everything if the peer needs this core to make progress. So a wait goes through phases:
//
//   1. spin with pause while it is likely that the answer is on its way. How long is learned: the
//      budget follows how long past waits took, up to WaitOptions::max_spin_us, and shrinks to almost
//      nothing when spinning did not help.
//   2. between bursts of about 2 us offer the core to others (sched_yield). If that takes long, somebody
//      else had work: more runnable threads than cores, stop spinning soon.
//   3. the peer was last seen on this very core: it cannot be running. Yield at once, a few times, then
//      sleep.
//   4. sleep until the tripwire or event queue wakes us.
//
// A Waiter belongs to one waiting place (one direction of a connection, one event queue) and keeps what
// it learned. Several threads may wait at one place: they share what they learn, roughly.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include <clan/cpu.h>
#include <clan/clock.h>
#include <clan/context.h>

namespace clan {

class Waiter {
 public:
  explicit Waiter(const WaitOptions& options)
      : options_(options), budget_ns_(std::uint64_t{options.max_spin_us} * 1000) {}

  /// Spins until `ready()` (true at once if it is), at most as long as seems worth while. True = ready.
  /// False = the caller should arm, look again and sleep. `peer_cpu` = current_cpu_tag() of the peer
  /// when last heard of, 0 = unknown.
  template <typename Ready>
  bool spin(Ready&& ready, std::uint16_t peer_cpu, std::uint64_t deadline_ns = kNoDeadline) {
    if (options_.mode == WaitOptions::Mode::kSleep) {
      set_start(0);
      return ready();
    }
    // A short burst without looking at any clock: most waits of a busy connection end here. Without
    // pause, which takes up to 140 cycles: as much as the cache line that is on its way.
    for (int i = 0; i < kFirstBurst; ++i) {
      if (ready()) return true;
    }
    set_start(monotonic_ns());
    if (options_.mode == WaitOptions::Mode::kPoll) return poll(ready, deadline_ns);
    const bool same_core = peer_cpu != 0 && peer_cpu == current_cpu_tag();
    if (same_core) return yield_to_peer(ready);
    return spin_for_budget(ready, deadline_ns);
  }

  /// False: the thread must not sleep, only call spin() again after looking whether all is well.
  bool may_sleep() const { return options_.mode != WaitOptions::Mode::kPoll; }

  /// After a sleep: how long the whole wait took decides whether spinning would have paid.
  void slept() {
    const std::uint64_t start = start_ns();
    if (start == 0) return;
    const std::uint64_t waited_ns = monotonic_ns() - start;
    if (waited_ns < 2 * most_ns()) {
      set_budget(std::min(most_ns(), budget_ns() * 2 + kLeastBudgetNs));
    } else {
      set_budget(std::max(kLeastBudgetNs, budget_ns() / 2));
    }
  }

  std::uint64_t budget_ns() const {
    return budget_ns_.load(std::memory_order_relaxed);  // relaxed: a guess
  }

 private:
  std::uint64_t most_ns() const { return std::uint64_t{options_.max_spin_us} * 1000; }
  std::uint64_t start_ns() const { return start_ns_.load(std::memory_order_relaxed); }  // relaxed: as above
  void set_start(std::uint64_t ns) { start_ns_.store(ns, std::memory_order_relaxed); }  // relaxed: as above
  void set_budget(std::uint64_t ns) {
    budget_ns_.store(ns, std::memory_order_relaxed);  // relaxed: a guess
  }

  static constexpr int kFirstBurst = 256;
  static constexpr int kBurst = 64;
  static constexpr int kSameCoreYields = 6;
  static constexpr std::uint64_t kLeastBudgetNs = 1000;
  static constexpr std::uint64_t kContendedYieldNs = 5000;

  template <typename Ready>
  bool poll(Ready&& ready, std::uint64_t deadline_ns) {
    for (unsigned n = 0; n < 64; ++n) {
      for (int i = 0; i < 1024; ++i) {
        if (ready()) return true;
        cpu_pause();
      }
      if (deadline_ns != kNoDeadline && monotonic_ns() >= deadline_ns) return false;
    }
    sched_yield();
    return ready();
  }

  template <typename Ready>
  bool yield_to_peer(Ready&& ready) {
    for (int i = 0; i < kSameCoreYields; ++i) {
      sched_yield();
      if (ready()) return true;
    }
    return false;
  }

  template <typename Ready>
  bool spin_for_budget(Ready&& ready, std::uint64_t deadline_ns) {
    std::uint64_t now = start_ns();
    const std::uint64_t end = std::min(deadline_ns, now + budget_ns());
    while (now < end) {
      for (int i = 0; i < kBurst; ++i) {
        if (ready()) {
          set_budget(std::min(most_ns(), budget_ns() + budget_ns() / 8));
          return true;
        }
        cpu_pause();
      }
      const std::uint64_t before = monotonic_ns();
      sched_yield();
      now = monotonic_ns();
      if (now - before > kContendedYieldNs) {
        // Somebody else used the core in the meantime; perhaps that was our peer.
        if (ready()) return true;
        set_budget(std::max(kLeastBudgetNs, budget_ns() / 2));
        return false;
      }
    }
    return ready();
  }

  WaitOptions options_;
  std::atomic<std::uint64_t> budget_ns_;
  std::atomic<std::uint64_t> start_ns_{0};  ///< of the wait, once its first burst has not been enough
};

}  // namespace clan

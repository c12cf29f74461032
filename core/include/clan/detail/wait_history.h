// What past waits at one place took, and how long the next should spin (wait.h, 3).
//
// Threads that wait at one place share this roughly: all loads and stores are relaxed, as a spoilt
// guess costs one spin or sleep too many.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace clan {

/// What is known of the peer that is waited for.
struct PeerHint {
  std::uint16_t cpu = 0;  ///< its last known current_cpu_tag(), 0 = unknown
  bool slept = false;     ///< it had to be woken for the last message to it
  /// what it has been given to do keeps it awake about that long
  std::uint64_t works_until_ns = 0;
};

class WaitHistory {
 public:
  explicit WaitHistory(std::uint64_t max_ns) : max_ns_(max_ns) {}

  std::uint64_t max_ns() const { return max_ns_; }

  /// When the wait began, once its first burst has not been enough; 0 = not known.
  // relaxed: a guess
  std::uint64_t start_ns() const { return start_ns_.load(std::memory_order_relaxed); }
  // relaxed: a guess
  void set_start(std::uint64_t ns) { start_ns_.store(ns, std::memory_order_relaxed); }

  /// How long a wait takes, by those before.
  // relaxed: a guess
  std::uint64_t expected_ns() const { return expected_ns_.load(std::memory_order_relaxed); }
  /// Waits take so long that spinning is of no use.
  bool is_long() const { return is_long(expected_ns()); }
  /// A wait has taken so long.
  void expect(std::uint64_t ns) {
    const std::uint64_t next = (3 * expected_ns() + std::min(ns, 4 * max_ns_)) / 4;
    expected_ns_.store(next, std::memory_order_relaxed);  // relaxed: a guess
  }
  /// What waits without a sleep take, and those before were with one.
  void expect_only(std::uint64_t ns) {
    expected_ns_.store(ns, std::memory_order_relaxed);  // relaxed: a guess
  }

  /// How long a wait that begins now would spin, if its peer is awake.
  std::uint64_t budget_ns() const { return budget_for(expected_ns(), false); }
  /// Returns how long to spin now. Sets `*tries` if that is longer than past waits justify.
  std::uint64_t next_budget(bool peer_slept, bool* tries) {
    const std::uint64_t expected = expected_ns();
    const std::uint64_t budget = budget_for(expected, peer_slept);
    if (budget >= max_ns_ || is_long(expected)) return budget;
    const std::uint32_t turn = turns_.load(std::memory_order_relaxed) + 1;  // relaxed: a guess
    turns_.store(turn, std::memory_order_relaxed);                          // relaxed: a guess
    *tries = turn % kTryEvery < kTriesInARow;
    return *tries ? 2 * max_ns_ : budget;
  }

 private:
  /// Several in a row: only while this end spins can the other one learn that it may spin, too.
  static constexpr std::uint32_t kTryEvery = 1024, kTriesInARow = 16;

  bool is_long(std::uint64_t expected) const { return expected > 3 * max_ns_; }
  std::uint64_t budget_for(std::uint64_t expected, bool peer_slept) const {
    // Such a wait costs no more processor time by spinning; one that takes longer is an exception.
    if (expected <= max_ns_ / 5) return 2 * max_ns_;
    return peer_slept || expected > max_ns_ / 2 ? 0 : max_ns_;
  }

  const std::uint64_t max_ns_;
  std::atomic<std::uint64_t> expected_ns_{max_ns_ / 5 * 2};
  std::atomic<std::uint64_t> start_ns_{0};
  /// of waits for which spinning does not seem worth while
  std::atomic<std::uint32_t> turns_{0};
};

}  // namespace clan

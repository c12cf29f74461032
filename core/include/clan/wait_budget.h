// How long others may keep calls on a connection waiting: the other end, and processes that share this one.
//
// Whoever is stopped in the middle of something, or says so in the pipe and is hostile, is waited for. One wait ends in
// a reset after ten seconds; many that end just before would hold up a process for ever. So they count together, and a
// hundredth of the time that passes is given back. Those of less than a second do not count: on a machine with many
// more threads than processors, whoever has a lock may be away from his for that long, again and again.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace clan {

class WaitBudget {
 public:
  static constexpr std::uint64_t kMostNs = 10'000'000'000u;
  static constexpr std::uint64_t kShortNs = 1'000'000'000;
  static constexpr std::uint64_t kBackAfter = 100;  ///< so many times as long

  /// What is left for a wait that begins now.
  std::uint64_t left_ns(std::uint64_t now_ns) const { return kMostNs - used_ns(now_ns); }
  /// A wait of so long has ended. Of two threads that wait at once one may not count.
  void spend(std::uint64_t now_ns, std::uint64_t waited_ns) {
    if (waited_ns < kShortNs) return;
    const std::uint64_t used = used_ns(now_ns);
    // relaxed: numbers by themselves
    used_.store(std::min(kMostNs, used + waited_ns), std::memory_order_relaxed);
    at_.store(now_ns, std::memory_order_relaxed);
  }
  /// For the next connection.
  void reset() {
    used_.store(0, std::memory_order_relaxed);  // relaxed: the pool's lock publishes it
    at_.store(0, std::memory_order_relaxed);
  }

 private:
  std::uint64_t used_ns(std::uint64_t now_ns) const {
    const std::uint64_t used = used_.load(std::memory_order_relaxed), at = at_.load(std::memory_order_relaxed);
    const std::uint64_t back = now_ns > at ? (now_ns - at) / kBackAfter : 0;
    return used > back ? used - back : 0;
  }

  std::atomic<std::uint64_t> used_{0}, at_{0};
};

/// One wait after the other, on account of a budget.
class BudgetedWait {
 public:
  explicit BudgetedWait(WaitBudget& budget) : budget_(budget) {}
  ~BudgetedWait() { end(); }
  BudgetedWait(const BudgetedWait&) = delete;
  BudgetedWait& operator=(const BudgetedWait&) = delete;

  /// It goes on, or another one begins. False: nothing is left for it.
  bool goes_on(std::uint64_t now_ns) {
    constexpr std::uint64_t kGapNs = 1'000'000'000;  // nobody has waited meanwhile
    if (began_ns_ == 0 || now_ns - looked_ns_ > kGapNs) {
      end();
      began_ns_ = now_ns;
      most_ns_ = budget_.left_ns(now_ns);
    }
    looked_ns_ = now_ns;
    return now_ns - began_ns_ < most_ns_;
  }
  std::uint64_t waited_ns() const { return looked_ns_ - began_ns_; }
  void end() {
    if (began_ns_ != 0) budget_.spend(looked_ns_, waited_ns());
    began_ns_ = 0;
  }

 private:
  WaitBudget& budget_;
  std::uint64_t began_ns_ = 0, looked_ns_ = 0, most_ns_ = 0;
};

}  // namespace clan

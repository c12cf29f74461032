// How long others may keep calls on a connection waiting: the other end, and processes that share
// this one.
//
// A thread that has a lock may be off its processor, may have been stopped, or may be a lie of the
// other end, which can write the word. Two budgets bound that, of which a hundredth of the time
// that passes is given back:
//
//   in calls       80 ms for one wait, 0.2 s for all of them, of a connection and, for locks of
//                  pipes, of a thread over all connections. When less than 10 ms of them are left
//                  a call does not wait: it says that there is nothing for now. So a rhythm of
//                  taking and letting go costs no more than that, nor does each call yield once.
//   for the owner  ten seconds in which calls went on, for all waits of a second and more. Then the
//                  connection is reset. The time in which /proc shows the owner as stopped does not
//                  count. Shorter waits do not count either: on a machine with many more threads
//                  than processors an owner may be off its own for that long, again and again.
//
// An owner that cannot be seen for half a second has died, or never was.
//
// Locks of a Pipe: a call waits 80 ms for a lock, or less (clan/wait_budget.h), and then answers
// EBUSY: nothing has been done, and the caller tries again. From then on a call only looks, until
// one has had the lock. An owner that /proc shows as stopped may keep it for as long as it is
// stopped. One that has died loses it at once. Of another one the pipe breaks after ten seconds in
// which calls were made, without the time in which the caller was stopped; after half a second if
// the owner is of another pid namespace; and at once if the word is no thread's.
#pragma once

#include <clan/export.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace clan {

class WaitBudget {
 public:
  static constexpr std::uint64_t kMostNs = 10'000'000'000u;     ///< for owners
  static constexpr std::uint64_t kShortNs = 1'000'000'000;      ///< waits that do not count
  static constexpr std::uint64_t kMostInCallsNs = 200'000'000;  ///< of calls
  static constexpr std::uint64_t kShortInCallsNs = 1'000'000;
  static constexpr std::uint64_t kBackAfter = 100;  ///< so many times as long

  /// A budget of `most_ns`, in which waits of less than `short_ns` do not count.
  explicit constexpr WaitBudget(std::uint64_t most_ns = kMostNs, std::uint64_t short_ns = kShortNs)
      : most_ns_(most_ns), short_ns_(short_ns) {}

  /// What is left for a wait that begins now.
  std::uint64_t left_ns(std::uint64_t now_ns) const { return most_ns_ - used_ns(now_ns); }
  /// A wait of so long has ended. Of two threads that wait at once one may not count.
  void spend(std::uint64_t now_ns, std::uint64_t waited_ns) {
    if (waited_ns < short_ns_) return;
    const std::uint64_t used = used_ns(now_ns);
    // relaxed: numbers by themselves
    used_.store(std::min(most_ns_, used + waited_ns), std::memory_order_relaxed);
    at_.store(now_ns, std::memory_order_relaxed);
  }
  /// For the next connection.
  void reset() {
    used_.store(0, std::memory_order_relaxed);  // relaxed: the pool's lock publishes it
    at_.store(0, std::memory_order_relaxed);
  }

 private:
  std::uint64_t used_ns(std::uint64_t now_ns) const {
    const std::uint64_t used = used_.load(std::memory_order_relaxed),
                        at = at_.load(std::memory_order_relaxed);
    const std::uint64_t back = now_ns > at ? (now_ns - at) / kBackAfter : 0;
    return used > back ? used - back : 0;
  }

  std::uint64_t most_ns_, short_ns_;
  std::atomic<std::uint64_t> used_{0}, at_{0};
};

/// The wait of one call, on account of a budget, and perhaps of another that is the thread's: a
/// thread that serves many connections does not wait for each as long as for one.
class CallWait {
 public:
  static constexpr std::uint64_t kMostNs = 80'000'000;
  static constexpr std::uint64_t kLeastNs = 10'000'000;  ///< that is to be left for a longer wait
  /// the time in which the caller was stopped does not count
  static constexpr std::uint64_t kMostOfAStepNs = 100'000'000;

  explicit CallWait(WaitBudget& budget, std::uint64_t most_ns = kMostNs,
                    WaitBudget* of_thread = nullptr)
      : budget_(budget), of_thread_(of_thread), most_ns_(most_ns) {}
  ~CallWait() {
    if (waited_ns_ == 0) return;
    budget_.spend(looked_ns_, waited_ns_);
    if (of_thread_ != nullptr) of_thread_->spend(looked_ns_, waited_ns_);
  }
  CallWait(const CallWait&) = delete;
  CallWait& operator=(const CallWait&) = delete;
  /// It is to be waited for longer.
  bool goes_on(std::uint64_t now_ns) {
    if (looked_ns_ == 0) {
      std::uint64_t left = budget_.left_ns(now_ns);
      if (of_thread_ != nullptr) left = std::min(left, of_thread_->left_ns(now_ns));
      most_ns_ = left < std::min(most_ns_, kLeastNs) ? 0 : std::min(most_ns_, left);
    } else {
      waited_ns_ += std::min(now_ns - looked_ns_, kMostOfAStepNs);
    }
    looked_ns_ = now_ns;
    return waited_ns_ < most_ns_;
  }

 private:
  WaitBudget& budget_;
  WaitBudget* const of_thread_;
  std::uint64_t most_ns_, looked_ns_ = 0, waited_ns_ = 0;
};

/// One thing that a thread keeps from calls, here or in another process: a lock of a pipe, a
/// counter of calls, the doorbells. What is known of its owner since a call last had it, over all
/// calls. Of two threads that count at once one may not.
class CLAN_EXPORT OwnerWait {
 public:
  static constexpr std::uint64_t kUnseenNs = 500'000'000;

  /// What has become of the owner.
  enum class Owner { kIsWaitedFor, kHasDied, kKeepsIt };

  /// A call has given up: those behind it only look.
  // relaxed: a flag by itself
  bool gave_up() const { return gave_up_.load(std::memory_order_relaxed); }
  void give_up() { gave_up_.store(true, std::memory_order_relaxed); }  // relaxed: as above
  /// Calls have looked at the owner, and none has had the thing since.
  // relaxed: likewise
  bool is_on() const { return gave_up() || looked_ns_.load(std::memory_order_relaxed) != 0; }
  /// Counts the time since the last look, at most every 10 ms. `thread`: the owner's id, 0: none
  /// that can be.
  Owner look(std::uint32_t thread, const WaitBudget& for_owner,
             std::uint64_t unseen_ns = kUnseenNs);
  /// A call has it.
  void over(WaitBudget& for_owner);
  /// For the next connection.
  void reset();

 private:
  std::atomic<bool> gave_up_{false};
  std::atomic<std::uint64_t> looked_ns_{0}, waited_ns_{0}, unseen_ns_{0};
};

}  // namespace clan

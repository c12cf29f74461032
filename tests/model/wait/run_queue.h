// The runnable threads of one core, as EEVDF of Linux 6.12 keeps them (kernel/sched/fair.c).
//
// Each thread has a virtual time, which advances the faster the less the thread weighs. A thread
// behind the average is owed time (its lag is positive) and is eligible; of the eligible threads
// the one with the earliest deadline runs, and keeps the core while it is eligible and inside its
// slice. A thread keeps its lag while it sleeps. A thread that is in debt when it goes to sleep
// stays in the queue, delayed, until the debt is paid.
#pragma once

#include <cstdint>
#include <vector>

namespace clan::sim {

using Ns = std::int64_t;

constexpr int kNice0 = 1024, kNice19 = 15;  ///< weights

/// What a queue knows of a thread. Times are virtual, but for `ran`.
struct Entity {
  int weight = kNice0;
  Ns vruntime = 0, deadline = 0, lag = 0;
  Ns protected_until = 0;
  bool queued = false, delayed = false;
  Ns ran = 0;
};

enum class YieldForm {
  kDefers,    ///< until 6.12.62: the deadline moves by a slice
  kForfeits,  ///< since then: an eligible thread's virtual time becomes its deadline
};

class RunQueue {
 public:
  RunQueue(Ns slice, Ns tick) : slice_(slice), tick_(tick) {}

  Entity* current() const { return current_; }
  const std::vector<Entity*>& entities() const { return entities_; }
  /// Returns how many threads would run, the current one included.
  int runnable() const;

  /// Charges the current thread with `ns`. Returns whether its slice is over and others wait.
  bool charge(Ns ns);
  /// Adds a thread that is new or woken, or ends its delay.
  void wake(Entity& e);
  /// Returns whether a thread that was just added should run at once.
  bool preempts(const Entity& e) const { return best() == &e; }
  /// Takes the current thread off the core, as it goes to sleep.
  void sleep();
  /// Removes a thread that another core takes.
  void remove(Entity& e);
  void yield(YieldForm form);
  /// Chooses the current thread. Returns nullptr if there is none.
  Entity* pick();

 private:
  Ns scaled(Ns ns, const Entity& e) const { return ns * kNice0 / e.weight; }
  Ns average() const;
  bool is_eligible(const Entity& e) const;
  Ns lag_of(const Entity& e) const;
  void place(Entity& e);
  Entity* best() const;

  const Ns slice_, tick_;
  std::vector<Entity*> entities_;
  Entity* current_ = nullptr;
  Ns last_average_ = 0;  ///< of a queue that is empty now
};

}  // namespace clan::sim

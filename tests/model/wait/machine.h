// A machine of a few cores with virtual time, on which threads run that are fibers of one thread.
//
// What a thread does costs virtual time (spend()), and what it stores other cores see one
// transfer of a cache line later. So a core may run that much ahead of the others, and no further:
// the fiber of the core that is behind runs next. Everything follows from the seeds of the callers.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "model/wait/run_queue.h"

namespace clan {
class Contention;
}
namespace clan::sim {

/// What steps take, in nanoseconds.
struct Costs {
  Ns look, pause, clock, line;
  Ns call, yield;           ///< a system call; a yield that finds nobody
  Ns turn;                  ///< the switch to another thread
  Ns ring;                  ///< wakes a thread on the same or an idle core
  Ns wake_idle;             ///< from there until an idle core runs it
  Ns ring_busy, wake_busy;  ///< the same with a core that runs another thread
  Ns tcp;  ///< what a kernel's connection does for a message, besides calls, ring and switch
};
constexpr Costs kFastCosts{1, 15, 20, 150, 130, 300, 700, 2000, 5000, 2500, 2000, 1500};
/// The host of a virtual machine may make such steps expensive.
constexpr Costs kSlowCosts{2, 45, 25, 200, 1300, 1400, 3500, 2000, 11'000, 31'000, 20'000, 2000};

struct Kernel {
  int cores = 2;
  Costs costs = kSlowCosts;
  Ns tick = 4'000'000, slice = 1'400'000;
  YieldForm yields = YieldForm::kForfeits;
  bool lazy = false;  ///< a thread that is woken on another core waits for that core's tick
};

enum class WakeHint { kNone, kSync };  ///< kSync: the thread that wakes is about to sleep

struct Thread : Entity {
  std::function<void()> body;  ///< without one, it computes for ever
  int core = 0;
  bool pinned = false;
  bool blocked = false, waking = false, rung = false;
  std::uint64_t switches = 0;
  double load = 0;  ///< the part of the last 32 ms or so in which it was runnable
  Ns tracked = 0;
  void track(Ns now);

  std::unique_ptr<std::uintptr_t[]> stack;
  void* where = nullptr;                   ///< on its stack, where it goes on
  std::unique_ptr<Contention> contention;  ///< its thread_local, while it does not run
  Thread();
  ~Thread();
};

class Machine {
 public:
  explicit Machine(const Kernel& kernel, Ns first_tick = 0);
  ~Machine();

  Thread& add(std::function<void()> body, int core, bool pinned, int weight = kNice0);
  void run_until(Ns end);

  // For the thread that runs.
  const Costs& costs() const { return kernel_.costs; }
  Ns now() const { return running_->now; }
  int core() const { return self().core; }
  std::uint64_t switches() const { return self().switches; }
  Thread& self() const { return *running_->running; }
  void spend(Ns ns) {
    while (running_->now + ns >= running_->limit) ns = spend_to_limit(ns);
    running_->now += ns;
  }
  void yield();
  /// Sleeps until rung, at once over if that has happened.
  void sleep();
  void ring(Thread& thread, WakeHint hint);

 private:
  struct Arrival {
    Ns at;
    Thread* thread;
  };
  struct Core {
    explicit Core(const RunQueue& empty) : queue(empty) {}
    RunQueue queue;
    Thread* running = nullptr;
    Ns now = 0, charged = 0, next_tick = 0;
    Ns limit = 0;  ///< up to which its thread may run ahead
    bool reschedule = false, at_tick = false;
    std::deque<Arrival> arrivals;
  };
  Ns due(const Core& core) const;
  void step(Core& core, Ns end);
  void charge(Core& core);
  void tick(Core& core);
  void accept(Core& core, Thread& thread);
  void choose(Core& core);
  bool pull(Core& core, bool idle);
  int place(const Thread& thread, WakeHint hint);
  bool is_idle(int core) const;
  double load_of(int core);
  void resume(Core& core, Ns end);
  void leave();
  Ns spend_to_limit(Ns ns);
  static void begin();

  const Kernel kernel_;
  std::vector<Core> cores_;
  std::vector<std::unique_ptr<Thread>> threads_;
  Core* running_ = nullptr;
  void* scheduler_ = nullptr;  ///< where run_until() goes on
};

inline Machine* the_machine = nullptr;
/// Returns the machine that the calling fiber runs on; there is one at a time.
inline Machine& machine() { return *the_machine; }

}  // namespace clan::sim

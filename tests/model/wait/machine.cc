#include "model/wait/machine.h"

#include <clan/detail/contention.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

namespace clan::sim {
namespace {

constexpr Ns kNever = std::numeric_limits<Ns>::max() / 4;
constexpr std::size_t kStackWords = 8192;

}  // namespace

// Stores where this fiber goes on, and goes on where another does. Not by swapcontext(), each of
// which takes two system calls.
extern "C" void clan_model_switch(void** from, void* to);
asm(R"(
.text
.type clan_model_switch, @function
clan_model_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

Thread::Thread() : contention(std::make_unique<Contention>()) {}
Thread::~Thread() = default;

void Thread::track(Ns now) {
  const double old = std::exp2(static_cast<double>(tracked - now) / 32e6);
  load = load * old + (blocked ? 0 : 1 - old);
  tracked = now;
}

Machine::Machine(const Kernel& kernel, Ns first_tick) : kernel_(kernel) {
  for (int i = 0; i < kernel.cores; ++i) {
    cores_.emplace_back(RunQueue(kernel.slice, kernel.tick));
    cores_.back().next_tick = first_tick + kernel.tick * (i + 1) / kernel.cores;
  }
  the_machine = this;
}
Machine::~Machine() { the_machine = nullptr; }

Thread& Machine::add(std::function<void()> body, int core, bool pinned, int weight) {
  auto thread = std::make_unique<Thread>();
  thread->weight = weight;
  thread->body = std::move(body);
  thread->core = core;
  thread->pinned = pinned;
  cores_[core].queue.wake(*thread);
  cores_[core].reschedule = true;
  threads_.push_back(std::move(thread));
  return *threads_.back();
}

void Machine::run_until(Ns end) {
  for (;;) {
    Core& next =
        *std::ranges::min_element(cores_, {}, [this](const Core& core) { return due(core); });
    if (due(next) >= end) return;
    step(next, end);
  }
}

// When something happens on the core that others, or its own thread, may notice.
Ns Machine::due(const Core& core) const {
  if (core.reschedule || (core.running != nullptr && core.running->body)) return core.now;
  const Ns arrival = core.arrivals.empty() ? kNever : core.arrivals.front().at;
  return core.running == nullptr ? arrival : std::min(arrival, core.next_tick);
}

void Machine::step(Core& core, Ns end) {
  core.now = std::max(core.now, due(core));
  if (core.running == nullptr) {
    core.charged = core.now;
    while (core.next_tick <= core.now) core.next_tick += kernel_.tick;
  }
  while (!core.arrivals.empty() && core.arrivals.front().at <= core.now) {
    Thread& thread = *core.arrivals.front().thread;
    core.arrivals.pop_front();
    accept(core, thread);
  }
  if (core.now >= core.next_tick) tick(core);
  if (core.reschedule) {
    choose(core);
  } else if (core.running != nullptr && core.running->body) {
    resume(core, end);
  }
}

void Machine::charge(Core& core) {
  if (core.queue.charge(core.now - std::exchange(core.charged, core.now))) core.reschedule = true;
}

void Machine::tick(Core& core) {
  while (core.next_tick <= core.now) core.next_tick += kernel_.tick;
  charge(core);
  if (core.at_tick) core.reschedule = true;
  pull(core, false);
  for (int i = 0; i < kernel_.cores; ++i) {  // idle cores ask what waits here
    if (core.queue.runnable() < 2 || !is_idle(i)) continue;
    cores_[i].now = std::max(cores_[i].now, core.now);
    cores_[i].reschedule = true;
  }
}

// A thread is woken on this core.
void Machine::accept(Core& core, Thread& thread) {
  charge(core);
  thread.track(core.now);
  thread.blocked = thread.waking = false;
  thread.core = static_cast<int>(&core - cores_.data());
  core.queue.wake(thread);
  if (core.running != nullptr && !core.queue.preempts(thread)) return;
  const bool waits = kernel_.lazy && &core != running_ && core.running != nullptr;
  (waits ? core.at_tick : core.reschedule) = true;
}

void Machine::choose(Core& core) {
  charge(core);
  core.reschedule = core.at_tick = false;
  Entity* next = core.queue.pick();
  if (next == nullptr && pull(core, true)) next = core.queue.pick();
  core.reschedule = false;
  if (next == core.running) return;
  if (core.running != nullptr) {
    ++core.running->switches;
    if (next != nullptr) core.now += kernel_.costs.turn;  // the next thread pays
  }
  core.running = static_cast<Thread*>(next);
}

// Takes a thread that waits for another core: where that one has more by more than the thread
// weighs, or this one nothing.
bool Machine::pull(Core& core, bool idle) {
  const auto weight_of = [](const Core& c) {
    int sum = 0;
    for (const Entity* e : c.queue.entities()) sum += e->delayed ? 0 : e->weight;
    return sum;
  };
  for (Core& other : cores_) {
    if (&other == &core) continue;
    for (Entity* e : other.queue.entities()) {
      Thread& thread = *static_cast<Thread*>(e);
      if (e == other.running || e->delayed || thread.pinned) continue;
      if (!idle && weight_of(other) - weight_of(core) < 2 * e->weight) continue;
      if (other.running != nullptr && !other.running->body)
        other.now = std::max(other.now, core.now);
      charge(other);
      other.queue.remove(*e);
      accept(core, thread);
      return true;
    }
  }
  return false;
}

bool Machine::is_idle(int core) const {
  return cores_[core].running == nullptr && cores_[core].arrivals.empty();
}

double Machine::load_of(int core) {
  double sum = 0;
  for (const auto& thread : threads_) {
    if (thread->core != core) continue;
    thread->track(now());
    sum += thread->weight * thread->load;
  }
  return sum;
}

// select_task_rq_fair(): the core of the thread that wakes or the one of before, and near it an
// idle one.
int Machine::place(const Thread& thread, WakeHint hint) {
  const int before = thread.core, here = core();
  if (thread.queued || thread.pinned) return before;
  int target = before;
  if (here != before && !is_idle(before)) {
    const bool sync = hint == WakeHint::kSync;
    const double there = load_of(before) - thread.weight * thread.load;
    const double mine =
        load_of(here) + thread.weight * thread.load - (sync ? self().weight * self().load : 0);
    if ((sync && running_->queue.runnable() == 1) || mine < 1.085 * there) target = here;
  }
  if (is_idle(target)) return target;
  for (int i = 0; i < kernel_.cores; ++i)
    if (is_idle(i)) return i;
  return target;
}

void Machine::yield() {
  spend(kernel_.costs.yield);
  charge(*running_);
  if (running_->queue.runnable() < 2) return;
  running_->queue.yield(kernel_.yields);
  running_->reschedule = true;
  leave();
}

void Machine::sleep() {
  spend(kernel_.costs.call);
  Thread& me = self();
  if (!me.rung) {
    charge(*running_);
    me.track(now());
    me.blocked = true;
    running_->queue.sleep();
    running_->reschedule = true;
    leave();
  }
  me.rung = false;
}

void Machine::ring(Thread& thread, WakeHint hint) {
  spend(kernel_.costs.call);
  thread.rung = true;
  if (!thread.blocked || thread.waking) return;
  thread.waking = true;
  spend(kernel_.costs.ring - kernel_.costs.call);
  const int target = place(thread, hint);
  if (target == core()) {
    accept(*running_, thread);
    if (running_->reschedule) leave();
    return;
  }
  Core& other = cores_[target];
  const bool interrupts = !is_idle(target) && !kernel_.lazy;
  const Costs& c = kernel_.costs;
  const Ns rings = interrupts ? c.ring_busy - c.ring : 0;
  const Ns takes = interrupts ? rings + c.wake_busy : is_idle(target) ? c.wake_idle : c.line;
  const auto later = std::ranges::upper_bound(other.arrivals, now() + takes, {}, &Arrival::at);
  other.arrivals.insert(later, {now() + takes, &thread});
  running_->limit = std::min(running_->limit, now() + takes + c.line);
  spend(rings);
}

// --- fibers --------------------------------------------------------------------------------------

void Machine::resume(Core& core, Ns end) {
  core.limit = std::min(end, core.next_tick);
  if (!core.arrivals.empty()) core.limit = std::min(core.limit, core.arrivals.front().at);
  for (const Core& other : cores_)
    if (&other != &core) core.limit = std::min(core.limit, due(other) + kernel_.costs.line);
  running_ = &core;
  Thread& thread = *core.running;
  if (thread.stack == nullptr) {
    thread.stack = std::make_unique<std::uintptr_t[]>(kStackWords);
    // Aligned as behind a call; below, the registers that the switch restores.
    std::uintptr_t* const top = thread.stack.get() + kStackWords - 2;
    *top = reinterpret_cast<std::uintptr_t>(&Machine::begin);
    thread.where = top - 6;
  }
  std::swap(t_contention, *thread.contention);
  clan_model_switch(&scheduler_, thread.where);
  std::swap(t_contention, *thread.contention);
  running_ = nullptr;
}

void Machine::begin() {
  machine().self().body();
  for (;;) machine().sleep();
}

void Machine::leave() { clan_model_switch(&self().where, scheduler_); }

Ns Machine::spend_to_limit(Ns ns) {
  ns -= running_->limit - running_->now;
  running_->now = running_->limit;
  leave();
  return ns;
}

}  // namespace clan::sim

// How long from ringing until a process that really sleeps runs again, and what does ringing cost?
//
//   member 0                                    member 1
//   waits until /proc says member 1 sleeps      sleeper.sleep()
//   t0; sleeper.ring(); t1        ───►          … t2: writes t2 where member 0 reads it
//
// wakeup = t2 - t0, wakeup_ring_cost = t1 - t0. The sleeper's count of voluntary context switches
// must have grown with every round: a variant that polls is not measured here, it fails.
#pragma once

#include <sys/eventfd.h>
#include <sys/resource.h>

#include <atomic>
#include <fstream>

#include "support/clock.h"
#include "support/context.h"
#include "support/owned.h"

namespace clan::bench {

class EventfdSleeper {
 public:
  std::string name() const { return "eventfd"; }
  std::string prepare() {
    fd_.reset(eventfd(0, EFD_CLOEXEC));
    return fd_ ? "" : "no eventfd";
  }
  bool open(Side) { return true; }
  bool sleep() {
    std::uint64_t value = 0;
    return read(fd_.get(), &value, sizeof value) == sizeof value;
  }
  bool ring() {
    const std::uint64_t one = 1;
    return write(fd_.get(), &one, sizeof one) == sizeof one;
  }

 private:
  Fd fd_;
};

/// What the two members tell each other, in the group's scratch memory.
struct WakeupExchange {
  std::atomic<std::int32_t> sleeper_pid;
  alignas(64) std::atomic<std::uint64_t> going_to_sleep;  // written by the sleeper: round number
  alignas(64) std::atomic<std::uint64_t> woken;           // written by the sleeper: round number
  std::atomic<std::uint64_t> woken_at;
};

inline bool sleeps(std::int32_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string number, name, state;
  stat >> number >> name >> state;
  return state == "S";
}

/// Rings once the sleeper has been asleep for a while, so that its core is idle as well.
template <class Sleeper>
bool ring_once(Member& m, Sleeper& sleeper, WakeupExchange& x, std::uint64_t round, bool record) {
  Spinner spin;
  while (x.going_to_sleep.load(std::memory_order_acquire) != round) spin();
  while (!sleeps(x.sleeper_pid.load(std::memory_order_relaxed))) spin();
  constexpr double kAsleepNs = 50'000;
  const std::uint64_t until = Clock::now() + Clock::from_ns(kAsleepNs);
  while (Clock::now() < until) {
  }
  const std::uint64_t t0 = Clock::now();
  if (!sleeper.ring()) return m.fail("ringing failed");
  const std::uint64_t t1 = Clock::now();
  while (x.woken.load(std::memory_order_acquire) != round) spin();
  const std::uint64_t t2 = x.woken_at.load(std::memory_order_relaxed);
  if (record) {
    m.record(t2 > t0 ? Clock::to_ns(t2 - t0) : 0);
    m.record(Clock::to_ns(t1 - t0), 1);
  }
  return true;
}

template <class Sleeper>
bool sleep_once(Member& m, Sleeper& sleeper, WakeupExchange& x, std::uint64_t round) {
  x.going_to_sleep.store(round, std::memory_order_release);
  if (!sleeper.sleep()) return m.fail("sleeping failed");
  x.woken_at.store(Clock::now(), std::memory_order_relaxed);
  x.woken.store(round, std::memory_order_release);
  return true;
}

template <class Sleeper>
bool wakeup_member(Member& m, Sleeper& sleeper) {
  auto& x = *reinterpret_cast<WakeupExchange*>(m.scratch());
  const std::uint64_t rounds = m.options().smoke ? 3 : 200;
  if (m.index() == 1) x.sleeper_pid.store(getpid(), std::memory_order_relaxed);
  std::uint64_t round = 0;
  while (m.next_sample()) {
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    for (std::uint64_t i = 0; i < rounds; ++i) {
      ++round;
      const bool ok = m.index() == 0 ? ring_once(m, sleeper, x, round, i > 0)
                                     : sleep_once(m, sleeper, x, round);
      if (!ok) return false;
    }
    getrusage(RUSAGE_SELF, &after);
    const auto slept = static_cast<std::uint64_t>(after.ru_nvcsw - before.ru_nvcsw);
    if (m.index() == 1 && slept < rounds) return m.fail("the sleeper did not sleep");
  }
  return true;
}

/// Rows `benchmark` and `benchmark`_ring_cost.
template <class Make>
Context::Variant wakeup_variant(Make make, std::string benchmark = "wakeup") {
  return [make, benchmark](Context& context) -> std::optional<Row> {
    auto sleeper = make();
    const auto outcome = context.run(
        benchmark, sleeper.name(), sleeper.prepare(), context.across_cores(), [&](Member& m) {
          return sleeper.open(m.side()) ? wakeup_member(m, sleeper) : m.fail("cannot open");
        });
    if (!outcome) return std::nullopt;
    Row row = make_row(benchmark, sleeper.name(), 1, "ns", *outcome);
    row.x_name = "sleepers";
    Row cost = row;
    cost.benchmark += "_ring_cost";
    cost.stats = outcome->members.front().stats[1];
    cost.op_ns = cost.stats.p50;
    context.results().add(cost);
    return row;
  };
}

}  // namespace clan::bench

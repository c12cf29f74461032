// The simulated scheduler does what was measured of Linux 6.18 on a virtual machine with ticks of
// 4 ms and slices of 1.4 ms.
#include <gtest/gtest.h>

#include <vector>

#include "model/wait/ping_pong.h"

namespace clan::sim {
namespace {

/// Returns the part of one core that a thread gets that yields in a loop beside a computation.
double part_of_yielder(int weight, YieldForm form) {
  Machine m({.cores = 1, .yields = form});
  m.add({}, 0, true, weight);
  const Thread& yields = m.add(
      [&m] {
        for (;;) m.yield();
      },
      0, true);
  m.run_until(1000 * kMs);
  return static_cast<double>(yields.ran) / (1000 * kMs);
}

TEST(SchedulerModel, YieldingBesideNice19GetsSixPercent) {
  const double part = part_of_yielder(kNice19, YieldForm::kForfeits);
  EXPECT_GT(part, 0.05);
  EXPECT_LT(part, 0.08);
}

TEST(SchedulerModel, YieldingBesideNice0GetsNearlyNothing) {
  EXPECT_LT(part_of_yielder(kNice0, YieldForm::kForfeits), 0.01);
}

TEST(SchedulerModel, YieldingByTheOldFormKeepsTheThreadsPart) {
  EXPECT_GT(part_of_yielder(kNice0, YieldForm::kDefers), 0.4);
  EXPECT_GT(part_of_yielder(kNice19, YieldForm::kDefers), 0.9);
}

TEST(SchedulerModel, AYieldThatSwitchesToAComputationCostsAboutATick) {
  for (const int weight : {kNice0, kNice19}) {
    Machine m({.cores = 1});
    m.add({}, 0, true, weight);
    std::vector<Ns> took;
    const auto yields = [&m, &took] {
      for (;;) {
        const Ns start = m.now();
        const std::uint64_t before = m.switches();
        m.yield();
        if (m.switches() != before) took.push_back(m.now() - start);
      }
    };
    m.add(yields, 0, true);
    m.run_until(1000 * kMs);
    ASSERT_GT(took.size(), 200u);
    for (const Ns each : took) {
      EXPECT_GT(each, 3 * kMs);
      EXPECT_LT(each, 5 * kMs);
    }
  }
}

Case one_core(int computations) { return {.where = Where::kOneCore, .computations = computations}; }

TEST(SchedulerModel, SleepersKeepTheirLatencyBesideAComputation) {
  const Measured alone = measure<AlwaysSleeps>(one_core(0));
  for (const int weight : {kNice0, kNice19}) {
    const Measured beside = measure<AlwaysSleeps>(one_core(weight));
    EXPECT_LE(beside.median, alone.median * 11 / 10);
    EXPECT_GT(beside.longest, kMs);
    EXPECT_GT(beside.trips_per_s, 0.45 * alone.trips_per_s);
  }
}

TEST(SchedulerModel, YieldersBesideAComputationLoseNearlyAll) {
  EXPECT_LT(measure<AlwaysYields>(one_core(kNice0)).trips_per_s, 1000);
  EXPECT_GT(measure<AlwaysSleeps>(one_core(kNice0)).trips_per_s, 30'000);
}

TEST(SchedulerModel, ASleeperOnAnotherBusyCoreCostsSixTimesOneOnTheSame) {
  const Ns near = measure<AlwaysSleeps>(one_core(kNice0)).median;
  const Ns far = measure<AlwaysSleeps>({.where = Where::kApart, .computations = kNice0}).median;
  EXPECT_GT(far, 6 * near);
  EXPECT_LT(far, 12 * near);
}

TEST(SchedulerModel, LazyPreemptionLetsASleeperOnAnotherCoreWaitForATick) {
  Case c{.where = Where::kApart, .computations = kNice0};
  c.kernel.lazy = true;
  EXPECT_GT(measure<AlwaysSleeps>(c).median, kMs);
  c.where = Where::kOneCore;
  EXPECT_LT(measure<AlwaysSleeps>(c).median, kMs / 20);
}

TEST(SchedulerModel, EverythingFollowsFromTheSeed) {
  Case c{.pairs = 2, .computations = kNice0, .time = 100 * kMs, .seed = 5};
  const double trips = measure<Production>(c).trips_per_s;
  EXPECT_EQ(measure<Production>(c).trips_per_s, trips);
  c.seed = 6;
  EXPECT_NE(measure<Production>(c).trips_per_s, trips);
}

}  // namespace
}  // namespace clan::sim

// The wait policy (clan/face/wait.h) under a simulated scheduler, beside what a thread gets that
// always sleeps. Broken policies show that the bounds would notice. A table of everything:
//
//   test_wait_model --gtest_also_run_disabled_tests --gtest_filter='*PrintsATable'
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#include "model/wait/ping_pong.h"

namespace clan::sim {
namespace {

constexpr std::pair<Costs, const char*> kKinds[] = {{kFastCosts, "fast: "}, {kSlowCosts, "slow: "}};
constexpr std::pair<Where, const char*> kPlaces[] = {
    {Where::kOneCore, " on one core"}, {Where::kAnywhere, " anywhere"}, {Where::kApart, " apart"}};
constexpr std::pair<int, const char*> kBeside[] = {
    {0, " alone"}, {kNice0, " beside nice 0"}, {kNice19, " beside nice 19"}};

using Run = std::function<void(const Case&)>;

/// Calls `run` for `c` with each kind of machine.
void on_each_kind(Case c, const Run& run) {
  for (const auto& [costs, kind] : kKinds) {
    c.kernel.costs = costs;
    SCOPED_TRACE(kind);
    run(c);
  }
}

/// Calls `run` for `c` on each kind of machine, alone and beside each kind of computation.
void beside_each(Case c, const Run& run) {
  for (const auto& [computations, beside] : kBeside) {
    c.computations = computations;
    SCOPED_TRACE(beside);
    on_each_kind(c, run);
  }
}

/// Calls `run` with each case of the matrix and its name.
void in_each_case(Ns time, const std::function<void(const Case&, const std::string&)>& run) {
  for (const auto& [costs, kind] : kKinds) {
    for (const int pairs : {1, 2, 4}) {
      for (const auto& [where, place] : kPlaces) {
        for (const auto& [computations, beside] : kBeside) {
          Case c{.pairs = pairs, .where = where, .computations = computations};
          c.kernel.costs = costs;
          c.time = computations == 0 ? time / 10 : time;
          run(c, kind + std::to_string(pairs) + place + beside);
        }
      }
    }
  }
}

/// Returns what a policy gets, in parts of what always sleeping gets.
template <typename Policy>
double part(const Case& c) {
  return measure<Policy>(c).trips_per_s / measure<AlwaysSleeps>(c).trips_per_s;
}

/// The same of the time of a processor for a trip.
template <typename Policy>
double part_of_cpu(const Case& c) {
  return measure<Policy>(c).cpu_us / measure<AlwaysSleeps>(c).cpu_us;
}

// --- what the policy keeps to --------------------------------------------------------------------

// Where the scheduler places the threads, it may place those of one policy better: with 12 seeds
// the least was 0.55, with pinned threads 0.76. The mean of all cases was 0.95 to 0.97.
constexpr double kLeast = 0.5, kLeastPinned = 0.7, kLeastMean = 0.93;
constexpr double kMostCpu = 1.1;

TEST(WaitPolicyModel, NeverGetsMuchLessThanAThreadThatAlwaysSleeps) {
  double sum = 0;
  int cases = 0;
  in_each_case(150 * kMs, [&](const Case& c, const std::string& name) {
    const double got = part<Production>(c);
    EXPECT_GT(got, c.where == Where::kAnywhere ? kLeast : kLeastPinned) << name;
    sum += std::min(got, 1.0);
    ++cases;
  });
  EXPECT_GT(sum / cases, kLeastMean);
}

TEST(WaitPolicyModel, SpinsWhereThePeerRuns) {
  on_each_kind({.where = Where::kApart, .time = 20 * kMs},
               [](const Case& c) { EXPECT_GT(part<Production>(c), 14); });
  on_each_kind({.where = Where::kApart, .computations = kNice19, .time = 200 * kMs},
               [](const Case& c) { EXPECT_GT(part<Production>(c), 8); });
}

TEST(WaitPolicyModel, YieldsWhereThePeerIsBehindIt) {
  on_each_kind({.where = Where::kOneCore, .time = 20 * kMs},
               [](const Case& c) { EXPECT_GT(part<Production>(c), 1.5); });
}

TEST(WaitPolicyModel, DoesNotSpinWhereThePeerCannotRun) {
  beside_each({.where = Where::kOneCore, .time = 200 * kMs},
              [](const Case& c) { EXPECT_LT(part_of_cpu<Production>(c), kMostCpu); });
}

TEST(WaitPolicyModel, SpinsForAPeerOnAnotherCoreWhereEachHasAComputation) {
  on_each_kind({.where = Where::kApart, .computations = kNice0, .time = 1000 * kMs},
               [](const Case& c) { EXPECT_GT(part<Production>(c), 2); });
}

TEST(WaitPolicyModel, DoesNotSpinForAPeerThatThinksForLong) {
  for (const Ns think : {kMs / 5, kMs}) {
    beside_each({.where = Where::kApart, .think = think, .time = 1000 * kMs},
                [](const Case& c) { EXPECT_LT(part_of_cpu<Production>(c), kMostCpu); });
  }
}

TEST(WaitPolicyModel, AThreadThatHasComputedGetsItsLagBack) {
  on_each_kind({.where = Where::kOneCore, .computations = kNice0, .time = 800 * kMs}, [](Case c) {
    const Measured usual = measure<Production>(c);
    c.first = 50 * kMs;
    const Measured then = measure<Production>(c);
    EXPECT_LT(then.median, 2 * usual.median);
    EXPECT_GT(then.trips_per_s, 0.9 * usual.trips_per_s);
  });
}

TEST(WaitPolicyModel, SpinsAgainSoonAfterAComputationHasEnded) {
  Case c{.where = Where::kApart, .computations = kNice0, .end = 20 * kMs, .time = 160 * kMs};
  on_each_kind(c, [](const Case& each) { EXPECT_GT(part<Production>(each), 5); });
}

// --- what the bounds notice ----------------------------------------------------------------------

TEST(WaitPolicyModel, TheBoundsNoticeAThreadThatAlwaysYields) {
  on_each_kind({.where = Where::kOneCore, .computations = kNice0, .time = 200 * kMs},
               [](const Case& c) { EXPECT_LT(part<AlwaysYields>(c), kLeast / 2); });
  on_each_kind({.computations = kNice19, .time = 200 * kMs},
               [](const Case& c) { EXPECT_LT(part<AlwaysYields>(c), kLeast / 2); });
}

TEST(WaitPolicyModel, TheBoundsNoticeAThreadThatAlwaysSpins) {
  beside_each({.where = Where::kOneCore, .time = 200 * kMs}, [](const Case& c) {
    EXPECT_LT(part<AlwaysSpins>(c), kLeast / 2);
    EXPECT_GT(part_of_cpu<AlwaysSpins>(c), 2 * kMostCpu);
  });
}

TEST(WaitPolicyModel, DISABLED_PrintsATable) {
  std::printf(
      "thousand trips/s: TCP, always asleep, CLAN; CLAN's in parts of TCP's, of sleeping; "
      "part of the trips with both ends on one core; us of a processor a trip\n");
  in_each_case(1000 * kMs, [](const Case& c, const std::string& name) {
    const double tcp = measure<Tcp>(c).trips_per_s, sleeps = measure<AlwaysSleeps>(c).trips_per_s;
    const Measured clan = measure<Production>(c);
    std::printf("%-32s %7.1f %7.1f %7.1f %6.2f %6.2f %5.2f %6.1f\n", name.c_str(), tcp / 1e3,
                sleeps / 1e3, clan.trips_per_s / 1e3, clan.trips_per_s / tcp,
                clan.trips_per_s / sleeps, clan.together, clan.cpu_us);
  });
}

}  // namespace
}  // namespace clan::sim

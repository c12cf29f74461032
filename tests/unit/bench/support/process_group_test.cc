#include "support/process_group.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <time.h>

#include "support/clock.h"
#include "support/cpu_time.h"

namespace clan::bench {
namespace {

constexpr double kWorkNs = 2e6;

/// Two members that share the first processor, so that nothing is probed.
GroupOptions two_members() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  int core = 0;
  while (!CPU_ISSET(core, &allowed)) ++core;
  GroupOptions options;
  options.cores = {{core}, {core}};
  options.samples = 3;
  return options;
}

void compute(double ns) {
  for (const double end = cpu_ns() + ns; cpu_ns() < end;) continue;
}

TEST(ProcessGroup, DividesTheCpuTimeOfAllMembersByTheOperationsOfAll) {
  constexpr std::uint64_t kOperations = 10;
  Clock::calibrate();
  const Outcome outcome = run_group(two_members(), [](Member& m) {
    compute(10 * kWorkNs);  // before the samples: not counted
    while (m.next_sample()) {
      compute(kWorkNs);
      if (m.index() == 0) m.did(kOperations);
    }
    return true;
  });
  ASSERT_TRUE(outcome.ok()) << outcome.failure;
  EXPECT_GE(outcome.cpu_ns, 2 * kWorkNs / kOperations);
  EXPECT_LT(outcome.cpu_ns, 2 * 2 * kWorkNs / kOperations);
}

TEST(ProcessGroup, CountsNoCpuTimeOfAMemberThatSleeps) {
  Clock::calibrate();
  const Outcome outcome = run_group(two_members(), [](Member& m) {
    while (m.next_sample()) {
      const timespec nap{0, 20'000'000};
      if (m.index() == 1) nanosleep(&nap, nullptr);
      m.did(m.index() == 0 ? 1 : 0);
    }
    return true;
  });
  ASSERT_TRUE(outcome.ok()) << outcome.failure;
  EXPECT_GT(outcome.cpu_ns, 0);
  EXPECT_LT(outcome.cpu_ns, 10e6);
}

TEST(ProcessGroup, KnowsNoCpuTimeOfOperationsThatNobodyCounted) {
  Clock::calibrate();
  const Outcome outcome = run_group(two_members(), [](Member& m) {
    while (m.next_sample()) compute(kWorkNs);
    return true;
  });
  ASSERT_TRUE(outcome.ok()) << outcome.failure;
  EXPECT_EQ(outcome.cpu_ns, 0);
}

}  // namespace
}  // namespace clan::bench

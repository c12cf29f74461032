#include "clan/wait_budget.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "clan/clock.h"
#include "support/process.h"

namespace clan {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000, kBegin = 1'000'000 * kSecond;

TEST(WaitBudget, IsUsedByWaitsThatEndJustInTime) {
  WaitBudget budget;
  EXPECT_EQ(budget.left_ns(kBegin), 10 * kSecond);
  budget.spend(kBegin, 9 * kSecond);
  EXPECT_EQ(budget.left_ns(kBegin), kSecond);
  budget.spend(kBegin, 9 * kSecond);
  EXPECT_EQ(budget.left_ns(kBegin), 0u);
}

TEST(WaitBudget, ComesBackWithTime) {
  WaitBudget budget;
  budget.spend(kBegin, 9 * kSecond);
  EXPECT_EQ(budget.left_ns(kBegin + 100 * kSecond), 2 * kSecond);
  EXPECT_EQ(budget.left_ns(kBegin + 2000 * kSecond), 10 * kSecond);
}

TEST(WaitBudget, IsNotUsedByWaitsOfTheScheduler) {
  WaitBudget budget;
  for (int i = 0; i < 10'000; ++i)
    budget.spend(kBegin + static_cast<std::uint64_t>(i), WaitBudget::kShortNs - 1);
  EXPECT_EQ(budget.left_ns(kBegin + 10'000), WaitBudget::kMostNs);
}

/// For how long the calls of one connection wait in all, each for something that is let go only
/// when it has given up.
std::uint64_t waited_in_calls(int calls) {
  WaitBudget budget(WaitBudget::kMostInCallsNs, WaitBudget::kShortInCallsNs);
  constexpr std::uint64_t kNap = kSecond / 1000;
  std::uint64_t now = kBegin, all = 0;
  for (int k = 0; k < calls; ++k) {
    CallWait wait(budget);
    while (wait.goes_on(now)) now += kNap, all += kNap;
  }
  return all;
}

TEST(CallWait, IsEightyMillisecondsOfACallAndAFifthOfASecondOfAll) {
  EXPECT_EQ(waited_in_calls(1), CallWait::kMostNs);
  EXPECT_GE(waited_in_calls(1000), WaitBudget::kMostInCallsNs);
  EXPECT_LT(waited_in_calls(1000), WaitBudget::kMostInCallsNs + WaitBudget::kMostInCallsNs / 10);
}

// One yield of each call would cost a slice of the scheduler each time.
TEST(CallWait, DoesNotBeginWithTheLittleThatHasComeBack) {
  WaitBudget budget(WaitBudget::kMostInCallsNs, WaitBudget::kShortInCallsNs);
  budget.spend(kBegin, WaitBudget::kMostInCallsNs);
  const std::uint64_t enough = kBegin + CallWait::kLeastNs * WaitBudget::kBackAfter;
  EXPECT_FALSE(CallWait(budget).goes_on(enough - kSecond / 1000));
  EXPECT_TRUE(CallWait(budget).goes_on(enough));
  // a short one may
  EXPECT_TRUE(CallWait(budget, kSecond / 1000).goes_on(enough - kSecond / 1000));
}

// As a process is with its whole group.
TEST(CallWait, DoesNotCountTheTimeInWhichTheCallerIsStopped) {
  WaitBudget budget;
  CallWait wait(budget, 2 * CallWait::kMostOfAStepNs);
  EXPECT_TRUE(wait.goes_on(kBegin));
  EXPECT_TRUE(wait.goes_on(kBegin + 3600 * kSecond));
  EXPECT_FALSE(wait.goes_on(kBegin + 7200 * kSecond));
}

struct OwnerWaits : testing::Test {
  /// Looks at `thread` until something is said of it, or for so long.
  OwnerWait::Owner looked(std::uint32_t thread, std::uint64_t most_ns) {
    const std::uint64_t end = monotonic_ns() + most_ns;
    OwnerWait::Owner owner = OwnerWait::Owner::kIsWaitedFor;
    while (owner == OwnerWait::Owner::kIsWaitedFor && monotonic_ns() < end) {
      owner = wait.look(thread, budget);
      ::usleep(1000);
    }
    return owner;
  }
  // a tenth of a second is left
  OwnerWaits() { budget.spend(monotonic_ns(), WaitBudget::kMostNs - kSecond / 10); }
  static constexpr std::uint64_t kLong = 600 * kSecond;                 ///< for hangs
  const std::uint32_t other = static_cast<std::uint32_t>(::getppid());  ///< a process that lives
  WaitBudget budget;
  OwnerWait wait;
};

TEST_F(OwnerWaits, EndForOneThatIsNoThreadWhenItHasNotBeenSeenForAWhile) {
  budget.reset();
  EXPECT_EQ(looked(0, kLong), OwnerWait::Owner::kHasDied);
}

TEST_F(OwnerWaits, EndForOneThatLivesWhenTheBudgetIsUsed) {
  EXPECT_EQ(looked(other, kLong), OwnerWait::Owner::kKeepsIt);
  wait.over(budget);
  EXPECT_FALSE(wait.is_on());
}

TEST_F(OwnerWaits, DoNotEndForOneThatIsStopped) {
  test::Process stopped = test::Process::start([] { return ::pause(); });
  stopped.stop();
  EXPECT_EQ(looked(static_cast<std::uint32_t>(stopped.pid()), kSecond / 2),
            OwnerWait::Owner::kIsWaitedFor);
}

}  // namespace
}  // namespace clan

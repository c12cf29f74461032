#include "clan/wait_budget.h"

#include <gtest/gtest.h>

namespace clan {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000, kBegin = 1'000'000 * kSecond;

/// Waits for `ns`, looking as a waiting thread does. False: it was not let.
bool wait_for(WaitBudget& budget, std::uint64_t from, std::uint64_t ns) {
  BudgetedWait wait(budget);
  constexpr std::uint64_t kLook = kSecond / 10;
  for (std::uint64_t at = 0; at <= ns; at += kLook) {
    if (!wait.goes_on(from + at)) return false;
  }
  return true;
}

TEST(WaitBudget, IsTenSecondsForOneWait) {
  WaitBudget budget;
  EXPECT_TRUE(wait_for(budget, kBegin, 9 * kSecond));
  WaitBudget another;
  EXPECT_FALSE(wait_for(another, kBegin, 10 * kSecond));
}

TEST(WaitBudget, IsUsedByWaitsThatEndJustInTime) {
  WaitBudget budget;
  std::uint64_t now = kBegin;
  int waits = 0;
  for (; waits < 100 && wait_for(budget, now, 9 * kSecond); ++waits) now += 10 * kSecond;
  EXPECT_EQ(waits, 1);
}

TEST(WaitBudget, ComesBackWithTime) {
  WaitBudget budget;
  EXPECT_TRUE(wait_for(budget, kBegin, 9 * kSecond));
  EXPECT_FALSE(wait_for(budget, kBegin + 20 * kSecond, 9 * kSecond));
  EXPECT_TRUE(wait_for(budget, kBegin + 2000 * kSecond, 9 * kSecond));
}

TEST(WaitBudget, IsNotUsedByWaitsOfTheScheduler) {
  WaitBudget budget;
  for (int i = 0; i < 10'000; ++i) budget.spend(kBegin + static_cast<std::uint64_t>(i), WaitBudget::kShortNs - 1);
  EXPECT_EQ(budget.left_ns(kBegin + 10'000), WaitBudget::kMostNs);
}

// The same closer may be met again an hour later in one long call.
TEST(BudgetedWait, BeginsAnewWhereNobodyHasWaitedMeanwhile) {
  WaitBudget budget;
  BudgetedWait wait(budget);
  EXPECT_TRUE(wait.goes_on(kBegin));
  EXPECT_TRUE(wait.goes_on(kBegin + 3600 * kSecond));
  EXPECT_EQ(wait.waited_ns(), 0u);
}

}  // namespace
}  // namespace clan

#include "plugins/mpi/fetch_cost.h"

#include <gtest/gtest.h>

namespace clan::mpi {
namespace {

constexpr std::size_t kBytes = 16 * 1024;

TEST(FetchCost, IsUnknownUntilAGetHasBeenTimed) {
  FetchCost cost;
  EXPECT_FALSE(cost.known());
  cost.note(kBytes, 2000);
  EXPECT_TRUE(cost.known());
}

TEST(FetchCost, OfShortAndOfLongMessagesIsNotCounted) {
  EXPECT_FALSE(FetchCost::counts(FetchCost::kLeast - 1));
  EXPECT_TRUE(FetchCost::counts(FetchCost::kLeast));
  EXPECT_TRUE(FetchCost::counts(FetchCost::kMost));
  EXPECT_FALSE(FetchCost::counts(FetchCost::kMost + 1));
}

TEST(FetchCost, IsLessWhereTwoCopiesCostMoreThanTheGetAndItsAnnouncement) {
  FetchCost cost;
  cost.note(kBytes, 1600);                 // 98 ps for each byte, and 0.8 us
  EXPECT_FALSE(cost.is_less(kBytes, 60));  // twice 0.98 us
  EXPECT_TRUE(cost.is_less(kBytes, 110));  // twice 1.8 us
}

TEST(FetchCost, FollowsWhatGetsTakeAndIsNotSpoiltByOnePause) {
  FetchCost cost;
  for (int i = 0; i < 10; ++i) cost.note(kBytes, 1600);
  cost.note(kBytes, 50'000'000);  // the thread was not running
  EXPECT_TRUE(cost.is_less(kBytes, 140));
  for (int i = 0; i < 50; ++i) cost.note(kBytes, 8000);
  EXPECT_FALSE(cost.is_less(kBytes, 140));
}

}  // namespace
}  // namespace clan::mpi

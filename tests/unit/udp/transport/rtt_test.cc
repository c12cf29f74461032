#include "link/udp/transport/rtt.h"

#include <gtest/gtest.h>

namespace clan::udp {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

TEST(RttEstimator, AssumesTwentyMillisecondsUntilItKnows) {
  const RttEstimator rtt;
  EXPECT_FALSE(rtt.known());
  EXPECT_EQ(rtt.smoothed(), RttEstimator::kInitial);
  EXPECT_EQ(rtt.variation(), RttEstimator::kInitial / 2);
  EXPECT_EQ(rtt.least(), RttEstimator::kInitial);
}

TEST(RttEstimator, TakesTheFirstSampleWhole) {
  RttEstimator rtt;
  rtt.sample(1000, 0, kSecond);
  EXPECT_TRUE(rtt.known());
  EXPECT_EQ(rtt.smoothed(), 1000u);
  EXPECT_EQ(rtt.variation(), 500u);
}

TEST(RttEstimator, SmoothsByAnEighthAndVariationByAQuarter) {
  RttEstimator rtt;
  rtt.sample(8000, 0, kSecond);
  rtt.sample(16'000, 0, kSecond);
  EXPECT_EQ(rtt.smoothed(), 9000u);
  EXPECT_EQ(rtt.variation(), (3 * 4000u + 8000u) / 4);
  EXPECT_EQ(rtt.latest(), 16'000u);
}

TEST(RttEstimator, LeavesThePeersWaitOutButIsNeverBelowTheLeastSeen) {
  RttEstimator rtt;
  rtt.sample(1000, 0, kSecond);
  rtt.sample(9000, 8000, kSecond);  // 1000 on the path
  EXPECT_EQ(rtt.smoothed(), 1000u);
  rtt.sample(1200, 8000, kSecond);  // a delay that cannot be
  EXPECT_GT(rtt.smoothed(), 1000u);
}

TEST(RttEstimator, ForgetsTheLeastAfterTenSeconds) {
  RttEstimator rtt;
  rtt.sample(1000, 0, kSecond);
  rtt.sample(5000, 0, 4 * kSecond);
  EXPECT_EQ(rtt.least(), 1000u);
  rtt.sample(5000, 0, 7 * kSecond);
  EXPECT_EQ(rtt.least(), 1000u) << "the half before still counts";
  rtt.sample(5000, 0, 13 * kSecond);
  EXPECT_EQ(rtt.least(), 5000u);
}

TEST(RttEstimator, TakesNoRoundTripForNothing) {
  RttEstimator rtt;
  rtt.sample(0, 0, kSecond);
  EXPECT_TRUE(rtt.known());
  EXPECT_EQ(rtt.latest(), 1u);
}

}  // namespace
}  // namespace clan::udp

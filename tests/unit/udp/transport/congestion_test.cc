// The congestion window by itself; how connections share a path is in simulation_test.cc.
#include "link/udp/transport/congestion.h"

#include <gtest/gtest.h>

namespace clan::test {
namespace {

using udp::Congestion;
using udp::RttEstimator;

constexpr std::uint64_t kMs = 1'000'000;

// One round trip of `rtt` ns in which all was acknowledged.
void round(Congestion& c, RttEstimator& estimator, std::uint64_t rtt, std::uint64_t* now) {
  *now += 10 * kMs;
  estimator.sample(rtt, 0, *now);
  c.on_acked(rtt, 1);
  c.end_round(estimator, *now);
}

TEST(Congestion, AWindowHoldsPacketsThatHaveGrown) {
  Congestion c(1200);
  c.set_packet_bytes(65'000);
  EXPECT_GE(c.window(), Congestion::kLeastPackets * 65'000);
}

// Path MTU discovery goes on while the window is least: what was saved before is too small
// afterwards. With a window smaller than a packet nothing would ever leave again.
TEST(Congestion, AWindowSavedOverADrainHoldsPacketsThatGrewMeanwhile) {
  Congestion c(1200);
  RttEstimator estimator;
  std::uint64_t now = 1000 * kMs;
  round(c, estimator, kMs, &now);
  now += Congestion::kDrainEvery * 3 / 4;
  round(c, estimator, kMs, &now);
  const std::uint64_t before = c.window();
  c.limited();
  round(c, estimator, kMs / 2, &now);  // the round trip has fallen: others drain
  ASSERT_LT(c.window(), before) << "does not drain, so this tests nothing";
  c.set_packet_bytes(65'000);
  round(c, estimator, kMs / 2, &now);
  round(c, estimator, kMs / 2, &now);
  EXPECT_GE(c.window(), Congestion::kLeastPackets * 65'000);
}

// Those that share a queue see its bottom only if none of them fills it: connections of one host
// drain at the same time, whenever they began.
TEST(Congestion, ConnectionsDrainAtTheSameTime) {
  std::uint64_t drained[2][3];
  for (const std::uint64_t began : {std::uint64_t{70}, std::uint64_t{333}}) {
    Congestion c(1200);
    RttEstimator estimator;
    std::uint64_t now = 1'000'000 * kMs + began * kMs;
    bool was_draining = false;
    for (std::uint64_t n = 0, rounds = 0; n < 3; ++rounds) {
      ASSERT_LT(rounds, 1000u) << "does not drain";
      c.limited();
      round(c, estimator, 5 * kMs, &now);
      const bool draining = c.window() < Congestion::kLeastPackets * 1200;
      if (draining && !was_draining) drained[began == 70][n++] = now / Congestion::kDrainEvery;
      was_draining = draining;
    }
    EXPECT_LT(now % Congestion::kDrainEvery, 10 * kMs) << "not at once";
  }
  for (int n = 0; n < 3; ++n) EXPECT_EQ(drained[0][n], drained[1][n]) << n;
}

// The packets that were under way when it began still leave the queue, and those of others which
// begin a round trip later.
TEST(Congestion, ADrainLastsForMoreThanTwoOfTheRoundTripsThatItBeganWith) {
  Congestion c(1200);
  RttEstimator estimator;
  std::uint64_t now = 1'000'000 * kMs, began = 0;
  for (int rounds = 0; began == 0; ++rounds) {
    ASSERT_LT(rounds, 1000) << "does not drain";
    c.limited();
    round(c, estimator, 20 * kMs, &now);
    if (c.window() < Congestion::kLeastPackets * 1200) began = now;
  }
  while (c.window() < Congestion::kLeastPackets * 1200) round(c, estimator, kMs, &now);
  EXPECT_GE(now - began, 45 * kMs);
  EXPECT_LE(now - began, 60 * kMs);
}

}  // namespace
}  // namespace clan::test

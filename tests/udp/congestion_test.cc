// The congestion window by itself; how connections share a path is in simulation_test.cc.
#include "link/udp/congestion.h"

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
  const std::uint64_t before = c.window();
  c.limited();
  round(c, estimator, kMs / 2, &now);  // the round trip has fallen: others drain
  ASSERT_LT(c.window(), before) << "does not drain, so this tests nothing";
  c.set_packet_bytes(65'000);
  round(c, estimator, kMs / 2, &now);
  round(c, estimator, kMs / 2, &now);
  EXPECT_GE(c.window(), Congestion::kLeastPackets * 65'000);
}

}  // namespace
}  // namespace clan::test

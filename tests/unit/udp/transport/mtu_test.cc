#include "link/udp/transport/mtu.h"

#include <gtest/gtest.h>

namespace clan::udp {
namespace {

/// What the search finds on a path that passes packets of up to `path` bytes.
std::size_t found(MtuDiscovery& mtu, std::size_t path, std::uint64_t now) {
  for (std::size_t probe; (probe = mtu.due(now)) != 0;) {
    mtu.on_probe_sent();
    EXPECT_EQ(mtu.due(now), 0u) << "one probe at a time";
    probe <= path ? mtu.on_probe_acked(probe, now) : mtu.on_probe_lost(now);
  }
  return mtu.current();
}

TEST(MtuDiscovery, FindsTheLargestStepThatPasses) {
  MtuDiscovery mtu;
  mtu.start(kLargestPacket, 0);
  EXPECT_EQ(mtu.current(), kBasePacket);
  EXPECT_EQ(found(mtu, 8973, 0), 8952u);
  MtuDiscovery ethernet;
  ethernet.start(kLargestPacket, 0);
  EXPECT_EQ(found(ethernet, 1472, 0), 1472u);
}

TEST(MtuDiscovery, GoesNoFurtherThanBothEndsCan) {
  MtuDiscovery mtu;
  mtu.start(4052, 0);
  EXPECT_EQ(found(mtu, kLargestPacket, 0), 4052u);
  EXPECT_EQ(mtu.due_at(), ~std::uint64_t{0});
}

TEST(MtuDiscovery, SearchesAgainTenMinutesAfterThreeLostProbes) {
  MtuDiscovery mtu;
  mtu.start(kLargestPacket, 0);
  EXPECT_EQ(found(mtu, 1472, 0), 1472u);
  EXPECT_EQ(mtu.due_at(), MtuDiscovery::kAgain);
  EXPECT_EQ(mtu.due(MtuDiscovery::kAgain - 1), 0u);
  EXPECT_EQ(found(mtu, kLargestPacket, MtuDiscovery::kAgain), kLargestPacket);
}

TEST(MtuDiscovery, FallsBackWhenFullPacketsVanishAndSmallOnesArrive) {
  MtuDiscovery mtu;
  mtu.start(kLargestPacket, 0);
  const std::size_t full = found(mtu, 8952, 0);
  std::uint64_t now = 100;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(mtu.on_lost(full, now - 50, now)) << "one burst";
  const auto lose = [&](unsigned times) {
    for (; times > 0; --times, now += 10) EXPECT_FALSE(mtu.on_lost(full, now, now + 10));
  };
  lose(MtuDiscovery::kVanished - 2);
  mtu.on_acked(full);  // one came through: it is ordinary loss
  lose(MtuDiscovery::kVanished - 1);
  EXPECT_FALSE(mtu.on_lost(kBasePacket, now, now + 10)) << "small ones prove nothing";
  mtu.on_acked(kBasePacket);
  EXPECT_TRUE(mtu.on_lost(full, now, now + 10));
  EXPECT_EQ(mtu.current(), kBasePacket);
}

TEST(MtuDiscovery, FallsBackWhenThreeFullPacketsVanish) {
  MtuDiscovery mtu;
  mtu.start(kLargestPacket, 0);
  const std::size_t full = found(mtu, 8952, 0);
  EXPECT_FALSE(mtu.on_timed_out(full, 1));
  EXPECT_FALSE(mtu.on_timed_out(full, 2));
  mtu.on_acked(full);  // one came through: it is ordinary loss
  EXPECT_FALSE(mtu.on_timed_out(full, 3));
  EXPECT_FALSE(mtu.on_timed_out(full, 4));
  EXPECT_FALSE(mtu.on_timed_out(kBasePacket, 5)) << "small ones prove nothing";
  EXPECT_TRUE(mtu.on_timed_out(full, 6));
  EXPECT_EQ(mtu.current(), kBasePacket);
  EXPECT_EQ(mtu.due(6), 0u) << "the path has to settle first";
  EXPECT_NE(mtu.due(2'000'000'000), 0u);
}

TEST(MtuDiscovery, BelievesTheKernelThatRefusesAPacket) {
  MtuDiscovery mtu;
  mtu.start(kLargestPacket, 0);
  EXPECT_EQ(found(mtu, 16'000, 0), 16'000u);
  mtu.on_too_big(9000, 1);
  EXPECT_EQ(mtu.current(), kBasePacket);
  EXPECT_EQ(found(mtu, kLargestPacket, 1), 8952u);
}

}  // namespace
}  // namespace clan::udp

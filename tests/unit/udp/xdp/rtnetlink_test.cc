// Notifications of changes: xdp_test.cc.
#include "link/udp/xdp/rtnetlink.h"

#include <gtest/gtest.h>

namespace clan::udp {
namespace {

TEST(Rtnetlink, TheLoopbackDeviceIsNoEthernet) {
  auto kernel = Rtnetlink::open();
  ASSERT_TRUE(kernel.ok());
  const auto device = kernel->device(1);
  ASSERT_TRUE(device.has_value());
  EXPECT_EQ(device->index, 1);
  EXPECT_FALSE(device->ethernet);
  EXPECT_FALSE(device->veth);
  EXPECT_GE(device->mtu, 1500u);
}

TEST(Rtnetlink, WhatIsNotThereIsNothing) {
  auto kernel = Rtnetlink::open();
  ASSERT_TRUE(kernel.ok());
  EXPECT_FALSE(kernel->device(0x7fff'fff0).has_value());
  EXPECT_FALSE(kernel->neighbour(1, {10, 254, 254, 254}).has_value());
  EXPECT_TRUE(kernel->device(1).has_value()) << "an error does not stay";
}

TEST(Rtnetlink, OurselvesAndManyHaveNoRoute) {
  auto kernel = Rtnetlink::open();
  ASSERT_TRUE(kernel.ok());
  EXPECT_FALSE(kernel->route({127, 0, 0, 1}, {}).has_value());
  EXPECT_FALSE(kernel->route({255, 255, 255, 255}, {}).has_value());
  EXPECT_FALSE(kernel->route({224, 0, 0, 1}, {}).has_value());
}

}  // namespace
}  // namespace clan::udp

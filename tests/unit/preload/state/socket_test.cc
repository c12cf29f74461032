#include "state/socket.h"

#include <gtest/gtest.h>

namespace clan::preload {
namespace {

TEST(Socket, KnowsNothingOfTheConnectionBeforeWhenItIsReset) {
  Socket s;
  s.client = true;
  s.inherited = true;
  s.nonblocking = 1;
  s.state = Socket::State::kShared;
  s.last_fork = 3;
  s.drained = true;
  s.rang = true;
  s.low_water = 100;
  s.told_sent.told = 7;
  s.told_sent.changed_ns = 8;
  s.sends = 4;
  s.offered_ns = 5;
  s.window_interface = 2;
  s.place = Socket::Place::kElsewhere;
  s.back_in = true;
  s.resending = true;
  s.in_sets = true;
  s.reset();
  EXPECT_FALSE(s.client);
  EXPECT_FALSE(s.inherited);
  EXPECT_EQ(s.nonblocking, -1);
  EXPECT_EQ(s.state, Socket::State::kTcp);
  EXPECT_EQ(s.last_fork, 0u);
  EXPECT_EQ(s.slot, nullptr);
  EXPECT_FALSE(s.drained);
  EXPECT_FALSE(s.rang);
  EXPECT_EQ(s.low_water, 1);
  EXPECT_EQ(s.told_sent.told, 0u);
  EXPECT_EQ(s.told_sent.changed_ns, 0u);
  EXPECT_EQ(s.sends, 0u);
  EXPECT_EQ(s.offered_ns, 0u);
  EXPECT_EQ(s.window_interface, 0u);
  EXPECT_EQ(s.place, Socket::Place::kNotAsked);
  EXPECT_FALSE(s.back_in);
  EXPECT_FALSE(s.resending);
  EXPECT_FALSE(s.in_sets);
}

TEST(Socket, StaysOnTcpForGoodWhenNoSetRemembersIt) {
  Socket s;
  EXPECT_FALSE(s.stays_on_tcp());
  s.state = Socket::State::kKernel;
  EXPECT_TRUE(s.stays_on_tcp());
  s.in_sets = true;
  EXPECT_FALSE(s.stays_on_tcp());
}

}  // namespace
}  // namespace clan::preload

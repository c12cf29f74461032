#include "far/carrier.h"

#include <gtest/gtest.h>

#include "../tcp_pair.h"

namespace clan::preload {
namespace {

TEST(Carrier, OfASocketThatHasNoneIsNotAsked) {
  TcpPair pair;
  pair.migrate();
  Socket& s = pair.socket(0);
  EXPECT_FALSE(carrier_is_loaded());
  EXPECT_FALSE(is_far(s));
  EXPECT_TRUE(is_all_there(s));
  wake_carrier(s);
  let_go_of_far(s);
  finish_carrier();
}

TEST(Carrier, CallsOfItsThreadsAreAllThere) {
  EXPECT_NE(carrier_calls.ring, nullptr);
  EXPECT_NE(carrier_calls.may_switch, nullptr);
  EXPECT_NE(carrier_calls.park, nullptr);
  EXPECT_NE(carrier_calls.comes_back, nullptr);
  EXPECT_NE(carrier_calls.answer, nullptr);
  EXPECT_NE(carrier_calls.lost, nullptr);
}

}  // namespace
}  // namespace clan::preload

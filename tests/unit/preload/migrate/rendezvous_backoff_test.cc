#include "migrate/rendezvous_backoff.h"

#include <gtest/gtest.h>

namespace clan::preload {
namespace {

TEST(CallsMade, LooksOftenAtFirstAndEightTimesWhileTheyDouble) {
  for (std::uint32_t call = 0; call < 16; ++call) EXPECT_TRUE(looks_at(call));
  for (std::uint32_t from = 16; from < 4096; from *= 2) {
    int looks = 0;
    for (std::uint32_t call = from; call < 2 * from; ++call) looks += looks_at(call) ? 1 : 0;
    EXPECT_EQ(looks, 8) << from;
  }
}

TEST(CallsMade, EndInGivingUp) {
  Socket s;
  EXPECT_FALSE(gives_up(s, kMostOfferCalls - 1));
  EXPECT_TRUE(gives_up(s, kMostOfferCalls));
  s.sends = kMostExchanges;
  EXPECT_FALSE(gives_up(s, 0));
  s.receives = kMostExchanges;
  EXPECT_TRUE(gives_up(s, 0));
}

TEST(CallsMade, InNoTimeAreNotEnough) {
  Socket s;
  s.offered_ns = monotonic_ns();
  EXPECT_FALSE(has_waited_long(s, kMostOfferCalls));
  s.offered_ns -= 2 * kLeastOfferNs;
  EXPECT_TRUE(has_waited_long(s, kMostOfferCalls));
}

}  // namespace
}  // namespace clan::preload

#include "link/udp/io/favourite_peer.h"

#include <gtest/gtest.h>

namespace clan::udp {
namespace {

SocketAddress at(std::uint16_t port) {
  SocketAddress a;
  a.port = port;
  return a;
}

void note(FavouritePeer& f, std::uint16_t port, unsigned times) {
  for (; times > 0; --times) f.note(at(port));
}

TEST(FavouritePeer, IsTheOneThatHasBeenNotedOftenEnough) {
  FavouritePeer f;
  note(f, 1, FavouritePeer::kEnough - 1);
  EXPECT_FALSE(f.is(at(1)));
  note(f, 1, 1);
  EXPECT_TRUE(f.is(at(1)));
  EXPECT_FALSE(f.is(at(2)));
}

TEST(FavouritePeer, TwoThatTakeTurnsAreBothNone) {
  FavouritePeer f;
  for (int i = 0; i < 10'000; ++i) {
    note(f, 1, 1);
    ASSERT_FALSE(f.is(at(1)));
    note(f, 2, 1);
    ASSERT_FALSE(f.is(at(2)));
  }
}

TEST(FavouritePeer, WhatWasLongAgoIsForgotten) {
  FavouritePeer f;
  note(f, 1, 1'000'000);
  note(f, 2, FavouritePeer::kMost + FavouritePeer::kEnough);
  EXPECT_TRUE(f.is(at(2)));
}

TEST(FavouritePeer, AFewPacketsToOthersDoNotChangeIt) {
  FavouritePeer f;
  note(f, 1, FavouritePeer::kMost);
  note(f, 2, FavouritePeer::kMost / 2);
  EXPECT_TRUE(f.is(at(1)));
}

TEST(FavouritePeer, DistrustTakesTwiceTheVotesEachTime) {
  FavouritePeer f;
  unsigned enough = FavouritePeer::kEnough;
  for (int i = 0; i < 40; ++i) {
    note(f, 1, enough - 1);
    ASSERT_FALSE(f.is(at(1)));
    note(f, 1, 1);
    ASSERT_TRUE(f.is(at(1)));
    f.distrust();
    ASSERT_FALSE(f.is(at(1)));
    enough = std::min(2 * enough, FavouritePeer::kMostPatience);
  }
}

}  // namespace
}  // namespace clan::udp

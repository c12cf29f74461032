#include "link/udp/io/connected_peer_vote.h"

#include <gtest/gtest.h>

namespace clan::udp {
namespace {

SocketAddress at(std::uint16_t port) {
  SocketAddress a;
  a.port = port;
  return a;
}

void note(ConnectedPeerVote& f, std::uint16_t port, unsigned times) {
  for (; times > 0; --times) f.note(at(port));
}

TEST(ConnectedPeerVote, IsTheOneThatHasBeenNotedOftenEnough) {
  ConnectedPeerVote f;
  note(f, 1, ConnectedPeerVote::kEnough - 1);
  EXPECT_FALSE(f.is(at(1)));
  note(f, 1, 1);
  EXPECT_TRUE(f.is(at(1)));
  EXPECT_FALSE(f.is(at(2)));
}

TEST(ConnectedPeerVote, TwoThatTakeTurnsAreBothNone) {
  ConnectedPeerVote f;
  for (int i = 0; i < 10'000; ++i) {
    note(f, 1, 1);
    ASSERT_FALSE(f.is(at(1)));
    note(f, 2, 1);
    ASSERT_FALSE(f.is(at(2)));
  }
}

TEST(ConnectedPeerVote, WhatWasLongAgoIsForgotten) {
  ConnectedPeerVote f;
  note(f, 1, 1'000'000);
  note(f, 2, ConnectedPeerVote::kMost + ConnectedPeerVote::kEnough);
  EXPECT_TRUE(f.is(at(2)));
}

TEST(ConnectedPeerVote, AFewPacketsToOthersDoNotChangeIt) {
  ConnectedPeerVote f;
  note(f, 1, ConnectedPeerVote::kMost);
  note(f, 2, ConnectedPeerVote::kMost / 2);
  EXPECT_TRUE(f.is(at(1)));
}

TEST(ConnectedPeerVote, DistrustTakesTwiceTheVotesEachTime) {
  ConnectedPeerVote f;
  unsigned enough = ConnectedPeerVote::kEnough;
  for (int i = 0; i < 40; ++i) {
    note(f, 1, enough - 1);
    ASSERT_FALSE(f.is(at(1)));
    note(f, 1, 1);
    ASSERT_TRUE(f.is(at(1)));
    f.distrust();
    ASSERT_FALSE(f.is(at(1)));
    enough = std::min(2 * enough, ConnectedPeerVote::kMostPatience);
  }
}

TEST(ConnectedPeerVote, WhoBeginsAnewIsNotDistrustedForAnother) {
  ConnectedPeerVote f;
  note(f, 1, ConnectedPeerVote::kEnough);
  f.distrust();
  f.begin_with(at(1));
  note(f, 1, ConnectedPeerVote::kEnough);
  EXPECT_FALSE(f.is(at(1))) << "the same one";
  f.begin_with(at(2));
  EXPECT_FALSE(f.has_votes());
  note(f, 2, ConnectedPeerVote::kEnough);
  EXPECT_TRUE(f.is(at(2)));
}

}  // namespace
}  // namespace clan::udp

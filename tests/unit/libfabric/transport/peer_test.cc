#include "transport/peer.h"

#include <gtest/gtest.h>

#include "wire/atomic_service.h"
#include "wire/small_access.h"

namespace clan::ofi {
namespace {

TEST(PeerOfTransport, IsOpenForWhatMayOvertakeNothingUnlessThereAreBarriers) {
  Peer peer;
  EXPECT_EQ(peer.open, kNoPeer);
  peer.send_by(4);
  EXPECT_EQ(peer.index, 4u);
  EXPECT_EQ(peer.open, 4u);
  peer.barriers = 1;
  peer.send_by(5);
  EXPECT_EQ(peer.index, 5u);
  EXPECT_EQ(peer.open, kNoPeer);
}

TEST(PeerOfTransport, ForgetsTheRepliesThatItIsOwed) {
  Peer peer;
  peer.replies.waiting.emplace_back(10);
  peer.replies.bytes = 10;
  peer.forget_replies();
  EXPECT_TRUE(peer.replies.empty());
  EXPECT_EQ(peer.replies.bytes, 0u);
  EXPECT_EQ(peer.long_atomic, nullptr);
}

}  // namespace
}  // namespace clan::ofi

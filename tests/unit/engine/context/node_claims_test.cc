#include "engine/context/node_claims.h"

#include <gtest/gtest.h>

namespace clan::engine {
namespace {

// Only their addresses are read.
const nic::Link* link(std::uintptr_t n) { return reinterpret_cast<const nic::Link*>(n * 8); }

constexpr char kThere[] = "10.0.0.2:4000", kElsewhere[] = "10.0.0.3:4000";

TEST(NodeClaims, ANumberBelongsToTheAddressWhereItWasSeenFirst) {
  NodeClaims nodes;
  EXPECT_TRUE(nodes.add(link(1), NodeId{7}, kThere));
  EXPECT_FALSE(nodes.add(link(2), NodeId{7}, kElsewhere));
  EXPECT_FALSE(nodes.add(link(3), NodeId{7}, "10.0.0.2:4001")) << "another process of that host";
  EXPECT_TRUE(nodes.add(link(4), NodeId{7}, kThere)) << "a second link of the same";
  EXPECT_TRUE(nodes.believed(link(1)));
  EXPECT_FALSE(nodes.believed(link(2)));
  EXPECT_TRUE(nodes.believed(link(9))) << "a link of this host";
}

TEST(NodeClaims, ItStaysThereWhenItsLinksHaveGone) {
  NodeClaims nodes;
  EXPECT_TRUE(nodes.add(link(1), NodeId{7}, kThere));
  EXPECT_FALSE(nodes.add(link(2), NodeId{7}, kElsewhere));
  nodes.remove(link(1));
  nodes.remove(link(2));
  EXPECT_FALSE(nodes.add(link(2), NodeId{7}, kElsewhere));
  EXPECT_TRUE(nodes.add(link(1), NodeId{7}, kThere));
}

TEST(NodeClaims, NobodyElsewhereHasANumberOfThisHost) {
  NodeClaims nodes;
  nodes.is_here(NodeId{7});
  EXPECT_FALSE(nodes.add(link(1), NodeId{7}, kThere));
}

TEST(NodeClaims, ALinkIsKnownByNumberAndAddress) {
  NodeClaims nodes;
  (void)nodes.add(link(1), NodeId{7}, kThere);
  EXPECT_TRUE(nodes.is(link(1), NodeId{7}, kThere));
  EXPECT_FALSE(nodes.is(link(1), NodeId{7}, kElsewhere));
  EXPECT_FALSE(nodes.is(link(1), NodeId{8}, kThere));
  EXPECT_FALSE(nodes.is(link(2), NodeId{7}, kThere));
  nodes.remove(link(1));
  EXPECT_FALSE(nodes.is(link(1), NodeId{7}, kThere));
}

TEST(NodeClaims, WhoMakesUpManyNumbersPushesOutIdleOnesOnly) {
  NodeClaims nodes;
  EXPECT_TRUE(nodes.add(link(1), NodeId{1}, kThere));
  nodes.is_here(NodeId{2});
  for (std::uint64_t n = 100; n < 100 + NodeClaims::kMostIdle; ++n) {
    EXPECT_TRUE(nodes.add(link(2), NodeId{n}, kElsewhere));
    nodes.remove(link(2));
  }
  EXPECT_FALSE(nodes.add(link(3), NodeId{1}, kElsewhere)) << "it has a link";
  EXPECT_TRUE(nodes.add(link(4), NodeId{2}, kElsewhere)) << "forgotten";
}

}  // namespace
}  // namespace clan::engine

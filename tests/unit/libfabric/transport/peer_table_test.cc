#include "transport/peer_table.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <map>

#include "wire/small_access.h"

namespace clan::ofi {
namespace {

/// An address vector.
struct Vector {
  std::map<fi_addr_t, Name> names;
  std::uint32_t now = 1;
  int asked = 0;
  std::uint32_t generation() const { return now; }
  const Name* find(fi_addr_t address) {
    ++asked;
    const auto it = names.find(address);
    return it == names.end() ? nullptr : &it->second;
  }
  fi_addr_t find(const Name& name) {
    ++asked;
    for (const auto& [address, known] : names)
      if (known == name) return address;
    return FI_ADDR_NOTAVAIL;
  }
};

Name name(std::uint16_t port) { return {.port = port}; }

TEST(PeerTable, KnowsAPeerByItsNameWhicheverWayItIsAskedFor) {
  PeerTable table;
  Vector vector{.names = {{5, name(7)}}};
  Peer& peer = table.named(name(7));
  EXPECT_EQ(table.at(5, vector), &peer);
  EXPECT_EQ(table.at(6, vector), nullptr);
  EXPECT_NE(&table.named(name(8)), &peer);
  EXPECT_EQ(table.size(), 2u);
}

TEST(PeerTable, AsksTheVectorOncePerAddressAndGeneration) {
  PeerTable table;
  Vector vector{.names = {{0, name(7)}}};
  Peer* const first = table.at(0, vector);
  table.at(0, vector);
  EXPECT_EQ(vector.asked, 1);
  vector.names[0] = name(9);
  ++vector.now;
  EXPECT_NE(table.at(0, vector), first);
  EXPECT_EQ(vector.asked, 2);
}

TEST(PeerTable, TellsTheAddressOfAPeerAsOfNow) {
  Vector vector{.names = {{3, name(7)}}};
  PeerTable table;
  Peer& peer = table.named(name(7));
  EXPECT_EQ(PeerTable::address_of(peer, &vector), 3u);
  vector.names.clear();
  EXPECT_EQ(PeerTable::address_of(peer, &vector), 3u) << "nothing has changed, says the generation";
  ++vector.now;
  EXPECT_EQ(PeerTable::address_of(peer, &vector), FI_ADDR_NOTAVAIL);
  EXPECT_EQ(PeerTable::address_of(peer, static_cast<Vector*>(nullptr)), FI_ADDR_NOTAVAIL);
}

TEST(PeerTable, FindsTheConnectionThatAPeerLivesOnBy) {
  PeerTable table;
  Peer& peer = table.named(name(7));
  EXPECT_EQ(table.other_connection(peer), kNoPeer);
  peer.pending = 4;
  table.remember(4, peer);
  EXPECT_EQ(table.other_connection(peer), kNoPeer) << "it has yet to be accepted";
  table.remember(9, peer);
  EXPECT_EQ(table.other_connection(peer), 9u);
  EXPECT_EQ(table.by_index(9), &peer);
  table.forget_connection(9);
  EXPECT_EQ(table.by_index(9), nullptr);
  EXPECT_EQ(table.other_connection(peer), kNoPeer);
  EXPECT_EQ(table.by_index(1000), nullptr);
}

TEST(PeerTable, ForgetsOnlyPeersThatNothingRefersTo) {
  PeerTable table;
  Vector vector;
  for (std::uint16_t i = 0; i < 2 * kFewPeers; ++i) vector.names[i] = name(i);
  for (std::uint16_t i = 0; i < kFewPeers; ++i) table.at(i, vector);
  EXPECT_FALSE(table.too_many());
  for (std::uint16_t i = kFewPeers; i < 2 * kFewPeers; ++i) table.at(i, vector);
  EXPECT_TRUE(table.too_many());

  table.remember(1, table.named(name(1)));
  table.named(name(2)).pending = 8;
  table.named(name(3)).failure = ECONNRESET;
  table.named(name(4)).replies.backlogged = true;
  table.named(name(5)).accesses = std::make_unique<SmallAccesses>();
  table.named(name(5)).accesses->listed = true;
  table.mark_own();
  table.named(name(6)).referenced = true;
  table.forget_unreferenced();
  EXPECT_EQ(table.size(), 6u);
  EXPECT_FALSE(table.too_many());
  EXPECT_EQ(table.by_index(1), &table.named(name(1)));
  // A forgotten one is made anew, not found where it was.
  EXPECT_EQ(table.at(10, vector), &table.named(name(10)));
}

}  // namespace
}  // namespace clan::ofi

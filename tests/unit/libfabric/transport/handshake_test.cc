#include "transport/handshake.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstring>

#include "wire/pieces.h"

namespace clan::ofi {
namespace {

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

SocketAddress address(std::uint16_t port) {
  const sockaddr_in raw = loopback(port);
  return read_address(&raw, sizeof raw);
}

Hello hello(std::uint16_t port) {
  Hello h;
  const sockaddr_in raw = loopback(port);
  h.length = sizeof raw;
  std::memcpy(&h.address, &raw, sizeof raw);
  return h;
}

TEST(Introduction, NamesItsSender) {
  const Hello h = hello(7471);
  const SocketAddress read = introduced_as(bytes_of(h));
  ASSERT_TRUE(read.valid());
  EXPECT_EQ(read.port(), 7471);
}

TEST(Introduction, IsRefusedInAnotherVersionCutShortOrTooLong) {
  Hello other = hello(7471);
  other.version = kWireVersion + 1;
  EXPECT_FALSE(introduced_as(bytes_of(other)).valid());
  const Hello whole = hello(7471);
  EXPECT_FALSE(introduced_as(bytes_of(whole).first(sizeof whole - 1)).valid());
  Hello longer = hello(7471);
  longer.length = sizeof longer.address + 1;
  EXPECT_FALSE(introduced_as(bytes_of(longer)).valid());
  Hello no_family = hello(7471);
  std::memset(&no_family.address, 0xee, sizeof no_family.address);
  EXPECT_FALSE(introduced_as(bytes_of(no_family)).valid());
}

TEST(Handshake, ExactlyOneOfTwoThatConnectToEachOtherGivesWay) {
  Peer lesser, greater;
  lesser.name = name_of(address(1000));
  greater.name = name_of(address(2000));
  EXPECT_TRUE(gives_way(lesser, greater.name)) << "we are the greater, the peer the lesser";
  EXPECT_FALSE(gives_way(greater, lesser.name));
}

TEST(Handshake, AnAttemptThatCarriesAMessageIsKept) {
  Peer lesser;
  lesser.name = name_of(address(1000));
  lesser.introduced = true;
  EXPECT_FALSE(gives_way(lesser, name_of(address(2000))));
}

TEST(Unverified, KnowsEachOnceAndNotMoreThanItHasRoomFor) {
  Unverified list;
  EXPECT_TRUE(list.empty());
  for (PeerIndex i = 0; i < Unverified::kMost; ++i)
    EXPECT_TRUE(list.add(i, address(static_cast<std::uint16_t>(1000 + i))));
  EXPECT_FALSE(list.add(Unverified::kMost, address(99)));
  list.remove(3);
  EXPECT_EQ(list.find(3), nullptr);
  EXPECT_FALSE(list.add(4, address(98))) << "it is there already";
  ASSERT_NE(list.find(4), nullptr);
  EXPECT_EQ(list.find(4)->port(), 1004);
  EXPECT_TRUE(list.add(Unverified::kMost, address(99)));
  EXPECT_EQ(list.last(), Unverified::kMost);
}

}  // namespace
}  // namespace clan::ofi

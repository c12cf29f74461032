// Addresses and names: what is read of what a program gives, and which of them are our own host's.
#include "system/address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace clan::ofi {
namespace {

SocketAddress ipv4(const char* host, std::uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(port);
  EXPECT_EQ(::inet_pton(AF_INET, host, &a.sin_addr), 1);
  return read_address(&a, sizeof a);
}

SocketAddress ipv6(const char* host, std::uint16_t port) {
  sockaddr_in6 a{};
  a.sin6_family = AF_INET6;
  a.sin6_port = htons(port);
  EXPECT_EQ(::inet_pton(AF_INET6, host, &a.sin6_addr), 1);
  return read_address(&a, sizeof a);
}

TEST(Address, IsNoneWhereItsLengthIsTooSmallForItsFamily) {
  sockaddr_in6 a{};
  a.sin6_family = AF_INET6;
  EXPECT_TRUE(read_address(&a, sizeof a).valid());
  EXPECT_FALSE(read_address(&a, sizeof a - 1).valid());
  a.sin6_family = AF_INET;
  EXPECT_TRUE(read_address(&a, sizeof(sockaddr_in)).valid());
  EXPECT_FALSE(read_address(&a, sizeof(sockaddr_in) - 1).valid());
  EXPECT_FALSE(read_address(&a, 1).valid());
  EXPECT_FALSE(read_address(nullptr, 100).valid());
}

TEST(Address, IsNoneOfAnotherFamily) {
  sockaddr_storage a{};
  a.ss_family = AF_UNIX;
  EXPECT_FALSE(read_address(&a, sizeof a).valid());
}

TEST(Address, KeepsThePortThatItIsGiven) {
  SocketAddress a = ipv4("10.1.2.3", 1);
  SocketAddress b = ipv6("2001:db8::1", 1);
  a.set_port(65535);
  b.set_port(80);
  EXPECT_EQ(a.port(), 65535);
  EXPECT_EQ(b.port(), 80);
}

TEST(Name, OfTheLoopbackIsThePortAlone) {
  for (const auto& a : {ipv4("127.0.0.1", 7), ipv4("127.9.9.9", 7), ipv6("::1", 7),
                        ipv6("::ffff:127.0.0.1", 7), ipv4("0.0.0.0", 7), ipv6("::", 7)}) {
    EXPECT_TRUE(name_of(a).local()) << to_text(a);
    EXPECT_EQ(name_of(a).port, 7);
    EXPECT_EQ(name_of(a), name_of(ipv4("127.0.0.1", 7)));
  }
}

// 192.0.2.0/24 and 2001:db8::/32 are for documentation: no host has them.
TEST(Name, OfAnotherHostTellsHostsAndPortsApart) {
  const Name a = name_of(ipv4("192.0.2.1", 7)), b = name_of(ipv4("192.0.2.2", 7));
  EXPECT_FALSE(a.local());
  EXPECT_NE(a, b);
  EXPECT_NE(a, name_of(ipv4("192.0.2.1", 8)));
  EXPECT_NE(a, name_of(ipv6("2001:db8::1", 7)));
}

TEST(Name, IsTheSameByAMappedAddress) {
  EXPECT_EQ(name_of(ipv4("192.0.2.1", 7)), name_of(ipv6("::ffff:192.0.2.1", 7)));
}

TEST(Name, GivesBackTheAddressThatItWasMadeOf) {
  for (const auto& a : {ipv4("192.0.2.1", 7), ipv6("2001:db8::1", 9)}) {
    const SocketAddress back = address_of(name_of(a));
    ASSERT_EQ(back.length, a.length);
    EXPECT_EQ(std::memcmp(&back.storage, &a.storage, a.length), 0) << to_text(back);
  }
}

TEST(Name, OfOurOwnHostAsOthersKnowItHasTheHost) {
  const SocketAddress a = ipv4("127.0.0.1", 7);
  EXPECT_FALSE(outer_name_of(a).local());
  EXPECT_EQ(address_of(outer_name_of(a)).port(), 7);
}

TEST(Name, IsShownWithBracketsWhereItsHostHasColons) {
  EXPECT_EQ(host_text(name_of(ipv4("192.0.2.1", 7))), "192.0.2.1");
  EXPECT_EQ(host_text(name_of(ipv6("2001:db8::1", 7))), "[2001:db8::1]");
}

TEST(AddressText, NamesTheFormatOfLibfabric) {
  EXPECT_EQ(to_text(ipv4("127.0.0.1", 7471)), "fi_sockaddr_in://127.0.0.1:7471");
}

TEST(AddressBytes, AreThoseOfTheFormatAndNoneOfOthers) {
  EXPECT_EQ(address_bytes(FI_SOCKADDR_IN), sizeof(sockaddr_in));
  EXPECT_EQ(address_bytes(FI_SOCKADDR_IN6), sizeof(sockaddr_in6));
}

TEST(Resolve, TakesNumbersWithoutAskingAnybody) {
  SocketAddress address;
  ASSERT_EQ(resolve("192.0.2.1", "4711", FI_NUMERICHOST, FI_SOCKADDR_IN, false, &address), 0);
  EXPECT_EQ(to_text(address), "fi_sockaddr_in://192.0.2.1:4711");
}

TEST(Resolve, SaysThatANameIsNoNumberWhereOneIsAskedFor) {
  SocketAddress address;
  EXPECT_NE(resolve("localhost", "1", FI_NUMERICHOST, FI_SOCKADDR_IN, false, &address), 0);
}

}  // namespace
}  // namespace clan::ofi

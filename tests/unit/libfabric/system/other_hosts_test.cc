#include "system/other_hosts.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace clan::ofi {
namespace {

SocketAddress v4(const char* host, std::uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(port);
  EXPECT_EQ(::inet_pton(AF_INET, host, &a.sin_addr), 1);
  return read_address(&a, sizeof a);
}

SocketAddress v6(const char* host, std::uint16_t port) {
  sockaddr_in6 a{};
  a.sin6_family = AF_INET6;
  a.sin6_port = htons(port);
  EXPECT_EQ(::inet_pton(AF_INET6, host, &a.sin6_addr), 1);
  return read_address(&a, sizeof a);
}

// Addresses of documentation: of no host.
constexpr char kElsewhere[] = "192.0.2.7", kElsewhere6[] = "2001:db8::7";

TEST(OtherHosts, AServiceOfAnotherHostIsAskedForAtItsDirectory) {
  EXPECT_EQ(service_at(name_of(v4("127.0.0.1", 7471))), "ofi.7471");
  EXPECT_EQ(service_at(name_of(v4(kElsewhere, 7471))), "udp:192.0.2.7:4790/ofi.7471");
  EXPECT_EQ(service_at(name_of(v6(kElsewhere6, 80))), "udp:[2001:db8::7]:4790/ofi.80");
  EXPECT_EQ(service_at(name_of(v6("::ffff:192.0.2.7", 80))), "udp:192.0.2.7:4790/ofi.80");
}

// In a process of its own: settings are read once.
TEST(OtherHosts, EverySettingOfTheNetworkIsRead) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto reaches_with = [](const char* packets) {
    ::setenv("CLAN_NETWORK_MODE", "off", 1);
    ::setenv("CLAN_NETWORK_PACKETS", packets, 1);
    std::_Exit(reaches_other_hosts() ? 3 : 4);
  };
  EXPECT_EXIT(reaches_with("auto"), testing::ExitedWithCode(3), "");
  EXPECT_EXIT(reaches_with("pigeons"), testing::ExitedWithCode(4), "CLAN_NETWORK_PACKETS=pigeons");
}

TEST(OtherHosts, ANameAndItsAddressAreTheSame) {
  for (const SocketAddress& address : {v4(kElsewhere, 7471), v6(kElsewhere6, 7471)}) {
    const SocketAddress back = address_of(name_of(address));
    EXPECT_EQ(to_text(back), to_text(address));
    EXPECT_EQ(outer_name_of(address), name_of(address));
  }
  EXPECT_FALSE(outer_name_of(v4("127.0.0.1", 1)).local());
}

TEST(OtherHosts, APeerOfAnotherHostCannotPassForOneOfOurs) {
  Name name;
  EXPECT_TRUE(name_peer(v4(kElsewhere, 7471), true, &name));
  EXPECT_EQ(name, name_of(v4(kElsewhere, 7471)));
  for (const SocketAddress& ours :
       {v4("127.0.0.1", 7471), v4("0.0.0.0", 7471), v6("::1", 7471), own_address(AF_INET)}) {
    EXPECT_FALSE(name_peer(ours, true, &name)) << to_text(ours);
  }
}

TEST(OtherHosts, APeerOfOurHostIsItsPortWhateverAddressItSays) {
  for (const SocketAddress& says : {v4("127.0.0.1", 7471), v4(kElsewhere, 7471)}) {
    Name name;
    EXPECT_TRUE(name_peer(says, false, &name));
    EXPECT_EQ(name, Name{.port = 7471});
  }
}

TEST(OtherHosts, OnlyALoopbackAddressIsReplacedForThem) {
  const SocketAddress own = v4(kElsewhere, 7471);
  EXPECT_EQ(to_text(shown_to(own, name_of(v4("192.0.2.8", 1)))), to_text(own));
  const SocketAddress loopback = v4("127.0.0.1", 7471);
  EXPECT_EQ(to_text(shown_to(loopback, Name{.port = 1})), to_text(loopback));
  const SocketAddress shown = shown_to(loopback, name_of(v4(kElsewhere, 1)));
  EXPECT_EQ(shown.port(), 7471);
}

}  // namespace
}  // namespace clan::ofi

#include "plugins/mpi/far_address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>

namespace clan::mpi {
namespace {

using Mode = NetworkOptions::Mode;

Interface own(const std::string& text, unsigned prefix) {
  Interface i;
  i.text = text;
  i.family = text.find(':') == std::string::npos ? AF_INET : AF_INET6;
  i.prefix = prefix;
  EXPECT_EQ(::inet_pton(i.family, text.c_str(), i.bytes.data()), 1);
  return i;
}

FarAddress peer(const std::vector<std::string>& hosts) {
  std::vector<Interface> all;
  for (const auto& host : hosts) all.push_back(own(host, 24));
  return far_address(all, 4000, Mode::kEncrypt);
}

using Hosts = std::vector<std::string>;

TEST(FarAddress, HasAsManyHostsAsThereArePlacesFor) {
  std::vector<Interface> many(10, own("10.0.0.1", 8));
  const FarAddress address = far_address(many, 4000, Mode::kOff);
  EXPECT_EQ(address.hosts, FarAddress::kMostHosts);
  EXPECT_EQ(address.port, 4000);
  EXPECT_EQ(address.mode, static_cast<std::uint8_t>(Mode::kOff));
  EXPECT_STREQ(address.host[0], "10.0.0.1");
}

TEST(FarAddress, HasNoPortWhereNobodyReachesThisHost) {
  EXPECT_EQ(far_address({}, 4000, Mode::kEncrypt).port, 0);
}

TEST(FarAddress, ThoseInANetworkOfThisHostAreTriedFirst) {
  const std::vector<Interface> here{own("192.168.7.2", 24), own("10.1.2.3", 9), own("fd00::1", 64)};
  EXPECT_EQ(hosts_to_try(here, peer({"172.16.0.9", "10.99.0.1", "192.168.8.1", "192.168.7.77"})),
            (Hosts{"10.99.0.1", "192.168.7.77", "172.16.0.9", "192.168.8.1"}));
  EXPECT_EQ(hosts_to_try(here, peer({"fd01::5", "fd00::5"})), (Hosts{"[fd00::5]", "[fd01::5]"}));
  EXPECT_EQ(hosts_to_try(here, peer({"10.129.0.1", "10.127.0.1"})),
            (Hosts{"10.127.0.1", "10.129.0.1"}));  // the ninth bit tells them apart
}

TEST(FarAddress, ThisHostsOwnAddressIsNoWayToAnother) {
  const std::vector<Interface> here{own("172.17.0.1", 16), own("10.0.0.1", 24)};
  EXPECT_EQ(hosts_to_try(here, peer({"172.17.0.1", "10.0.0.2"})), (Hosts{"10.0.0.2"}));
}

TEST(FarAddress, NonsenseIsPassedOver) {
  const std::vector<Interface> here{own("10.0.0.1", 24)};
  FarAddress address = peer({"10.0.0.2"});
  std::memset(address.host[1], 'x', sizeof address.host[1]);  // no end
  std::strcpy(address.host[2], "no address");
  address.hosts = 255;
  EXPECT_EQ(hosts_to_try(here, address), (Hosts{"10.0.0.2"}));
}

TEST(FarAddress, InterfacesAreNeitherLoopbackNorOfOneLink) {
  for (const Interface& one : interfaces()) {
    EXPECT_NE(one.text.substr(0, 4), "127.");
    EXPECT_NE(one.text, "::1");
    EXPECT_NE(one.text.substr(0, 4), "fe80");
    EXPECT_GT(one.prefix, 0u);
  }
}

}  // namespace
}  // namespace clan::mpi

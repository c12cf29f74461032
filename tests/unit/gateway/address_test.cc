#include "address.h"

#include <gtest/gtest.h>

#include <string>

namespace clan::gateway {
namespace {

Address parsed(const std::string& text) {
  std::string error;
  return Address::all_of(text, error).at(0);
}

TEST(GatewayNetwork, HasTheAddressesOfItsPrefix) {
  const auto has = [](const char* network, const char* host) {
    return Network::parse(network).value().contains(parsed(host).ip());
  };
  EXPECT_TRUE(has("10.0.0.0/8", "10.255.1.2:1"));
  EXPECT_FALSE(has("10.0.0.0/8", "11.0.0.0:1"));
  EXPECT_TRUE(has("10.0.0.0/8", "[::ffff:10.1.1.1]:1"));
  EXPECT_TRUE(has("192.168.4.0/22", "192.168.7.255:1"));
  EXPECT_FALSE(has("192.168.4.0/22", "192.168.8.0:1"));
  EXPECT_TRUE(has("0.0.0.0/0", "1.2.3.4:1"));
  EXPECT_FALSE(has("0.0.0.0/0", "[2001:db8::1]:1"));
  EXPECT_TRUE(has("::/0", "1.2.3.4:1"));
  EXPECT_TRUE(has("fd00::/8", "[fdff::1]:1"));
  EXPECT_FALSE(has("127.0.0.1", "127.0.0.2:1"));
  for (const char* none : {"", "10", "10.0.0.0/", "10.0.0.0/33", "::/129", "10.0.0.0/8x", "a/8"})
    EXPECT_FALSE(Network::parse(none)) << none;
}

TEST(GatewayAddress, AllAddressesOfBothFamiliesAreOnePlace) {
  EXPECT_TRUE(parsed("*:80").same_place(parsed("0.0.0.0:80")));
  EXPECT_TRUE(parsed(":80").same_place(parsed("[::]:80")));
  EXPECT_FALSE(parsed("*:80").same_place(parsed("127.0.0.1:80")));
  EXPECT_FALSE(parsed("127.0.0.1:80").same_place(parsed("127.0.0.1:81")));
  std::string error;
  const auto name = Address::of_name("web", error);
  EXPECT_TRUE(name->same_place(*Address::of_name("web", error)));
  EXPECT_FALSE(name->same_place(*Address::of_name("we", error)));
  EXPECT_FALSE(Address::of_name(std::string(97, 'x'), error));
}

}  // namespace
}  // namespace clan::gateway

#include "link/udp/wire/socket_address.h"

#include <gtest/gtest.h>

namespace clan::udp {
namespace {

SocketAddress v4(std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d,
                 std::uint16_t port) {
  SocketAddress address;
  address.ip[10] = address.ip[11] = 0xff;
  address.ip[12] = a;
  address.ip[13] = b;
  address.ip[14] = c;
  address.ip[15] = d;
  address.port = port;
  return address;
}

TEST(SocketAddress, IsWrittenAsPeopleWriteIt) {
  EXPECT_EQ(to_string(v4(10, 0, 0, 1, 4790)), "10.0.0.1:4790");
  SocketAddress v6;
  v6.ip[0] = 0xfe;
  v6.ip[1] = 0x80;
  v6.ip[15] = 1;
  v6.port = 80;
  EXPECT_EQ(to_string(v6), "[fe80::1]:80");
}

TEST(SocketAddress, IsEqualInAllItsParts) {
  const SocketAddress a = v4(1, 2, 3, 4, 5);
  EXPECT_EQ(a, v4(1, 2, 3, 4, 5));
  EXPECT_NE(a, v4(1, 2, 3, 4, 6));
  SocketAddress other = a;
  other.scope = 2;
  EXPECT_NE(a, other);
}

TEST(SocketAddress, KnowsWildcardsAndIpv4) {
  EXPECT_TRUE(is_wildcard(SocketAddress{}));
  EXPECT_FALSE(is_ipv4(SocketAddress{}));
  EXPECT_TRUE(is_wildcard(v4(0, 0, 0, 0, 1)));
  EXPECT_TRUE(is_ipv4(v4(0, 0, 0, 0, 1)));
  EXPECT_FALSE(is_wildcard(v4(127, 0, 0, 1, 1)));
  SocketAddress v6;
  v6.ip[15] = 1;
  EXPECT_FALSE(is_ipv4(v6));
}

TEST(NumericAddress, NamesAreNotAskedFor) {
  EXPECT_EQ(parse_numeric_address("127.0.0.1:4000")->port, 4000);
  EXPECT_EQ(parse_numeric_address("[::1]:4000")->port, 4000);
  EXPECT_EQ(parse_numeric_address("localhost:4000").error().err, ENOENT);
  EXPECT_EQ(parse_numeric_address("127.0.0.1").error().err, EINVAL);
}

}  // namespace
}  // namespace clan::udp

// The name by which an endpoint is found, and how it uses the engine.
#include "wire/channel.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include "support/streams.h"
#include "system/info.h"
#include "wire/wire.h"

namespace clan::ofi {
namespace {

SocketAddress ipv4(const char* host, std::uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(port);
  EXPECT_EQ(::inet_pton(AF_INET, host, &a.sin_addr), 1);
  return read_address(&a, sizeof a);
}

struct ChannelTest : testing::Test {
  Result<MessageEndpoint> take(const SocketAddress& wanted) {
    return take_name(context, wanted, message_options(), &taken);
  }
  Context context = test::must(Context::create({}));
  SocketAddress taken;
};

TEST_F(ChannelTest, HasRoomForTheHeaderBesideTheLargestMessage) {
  const MessageOptions options = message_options();
  EXPECT_EQ(options.max_message, kMaxMessage + sizeof(WireHeader));
  EXPECT_EQ(options.eager_bytes, 16384 + sizeof(WireHeader));
}

TEST_F(ChannelTest, TakesAFreePortWhereNoneIsAskedFor) {
  const auto first = test::must(take(ipv4("127.0.0.1", 0)));
  const SocketAddress other = taken;
  EXPECT_GE(taken.port(), 32768);
  EXPECT_TRUE(is_loopback(taken));
  const auto second = test::must(take(ipv4("127.0.0.1", 0)));
  EXPECT_NE(taken.port(), other.port());
}

TEST_F(ChannelTest, TakesTheHostsOwnAddressWhereAnyOrNoneIsAskedFor) {
  const std::uint16_t free = [&] {
    const auto endpoint = test::must(take(SocketAddress{}));
    EXPECT_FALSE(taken.is_any());
    EXPECT_TRUE(name_of(taken).local());
    return taken.port();
  }();
  const auto endpoint = test::must(take(ipv4("0.0.0.0", free)));
  EXPECT_FALSE(taken.is_any());
  EXPECT_EQ(taken.port(), free) << "the port is the program's choice";
}

TEST_F(ChannelTest, OfAPortThatIsTakenIsNone) {
  const auto first = test::must(take(ipv4("127.0.0.1", 0)));
  const SocketAddress wanted = taken;
  const auto second = take(wanted);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().err, EADDRINUSE);
}

TEST_F(ChannelTest, OnAnotherHostIsNone) {
  const auto endpoint = take(ipv4("192.0.2.1", 0));
  ASSERT_FALSE(endpoint.ok());
  EXPECT_EQ(endpoint.error().err, EADDRNOTAVAIL);
}

}  // namespace
}  // namespace clan::ofi

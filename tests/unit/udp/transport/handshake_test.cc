// How connections begin: cookies, refusals, half-open ones; over the simulated network.
#include "link/udp/transport/connection_parts.h"
#include "udp/endpoint_fixture.h"

namespace clan::test {
namespace {

class HandshakeTest : public EndpointTest {};

TEST_F(HandshakeTest, ConnectsInTwoRoundTripsAndCarriesMessagesBothWays) {
  add(), add();
  Talk& talk = network_.node(0).connect(1, traffic(1, 50, 5), traffic(2, 50, 5));
  ASSERT_TRUE(until([&] { return talk.established; }));
  EXPECT_EQ(network_.now() / 1000, 4 * 50u);
  EXPECT_TRUE(finish());
  EXPECT_EQ(talk.connection->counters().lost, 0u);
}

TEST_F(HandshakeTest, AServerThatIsNotThereIsATimeOut) {
  add(), add();
  network_.path(0, 1).cut = true;
  Talk& talk = network_.node(0).connect(1, traffic(1, 1, 0), traffic(2, 1, 0));
  ASSERT_TRUE(until([&] { return talk.down; }));
  EXPECT_EQ(talk.err, ETIMEDOUT);
  EXPECT_EQ(network_.now() / kSecond, 10u);
  EXPECT_EQ(network_.node(0).endpoint().connections(), 0u);
}

TEST_F(HandshakeTest, ARefusalSaysWhy) {
  add(), add().set_refusal(EACCES);
  Talk& talk = network_.node(0).connect(1, traffic(1, 1, 0), traffic(2, 1, 0));
  ASSERT_TRUE(until([&] { return talk.down; }));
  EXPECT_EQ(talk.err, EACCES);
  EXPECT_EQ(network_.node(1).endpoint().connections(), 0u);
}

TEST_F(HandshakeTest, HelloWithoutACookieMakesNoStateAndGetsALesserAnswer) {
  Node& server = add();
  udp::Handshake h;
  h.type = udp::PacketType::kHello;
  h.id = 5;
  std::vector<std::byte> packet(udp::kBasePacket), out(udp::Endpoint::kTrainBytes);
  for (std::uint64_t i = 1; i <= 10'000; ++i) {
    h.id = i;
    h.cookie = {};
    if (i % 2 == 0) h.cookie = {network_.now() / kMillisecond, i};  // guessed
    ASSERT_EQ(udp::write_handshake(packet, h), udp::kBasePacket);
    udp::write_check(packet);
    server.endpoint().receive(Network::address_of(9, static_cast<std::uint16_t>(i)), packet,
                              network_.now());
    const udp::Train t = server.endpoint().transmit(out, network_.now());
    ASSERT_EQ(t.bytes, 32u);
  }
  EXPECT_EQ(server.endpoint().connections(), 0u);
  EXPECT_EQ(server.endpoint().counters().retries, 10'000u);
  EXPECT_EQ(server.endpoint().counters().bad_cookies, 5'000u);
}

TEST_F(HandshakeTest, ACookieIsGoodForItsAddressAndItsTime) {
  Node& server = add();
  udp::Handshake h;
  h.type = udp::PacketType::kHello;
  h.id = 5;
  std::vector<std::byte> packet(udp::kBasePacket), out(udp::Endpoint::kTrainBytes);
  auto hello = [&](std::uint16_t port, std::uint64_t now) {
    udp::write_handshake(packet, h);
    udp::write_check(packet);
    server.endpoint().receive(Network::address_of(9, port), packet, now);
    const udp::Train t = server.endpoint().transmit(out, now);
    udp::Handshake answer;
    EXPECT_TRUE(udp::read_handshake(std::span(out).first(t.bytes), &answer));
    return answer;
  };
  udp::Handshake retry = hello(1, 1);
  ASSERT_EQ(retry.type, udp::PacketType::kRetry);
  h.cookie = retry.cookie;
  EXPECT_EQ(hello(2, 1).type, udp::PacketType::kRetry) << "another port";
  EXPECT_EQ(hello(1, 20 * kSecond).type, udp::PacketType::kRetry) << "too old";
  h.id = 6;
  EXPECT_EQ(hello(1, 1).type, udp::PacketType::kRetry) << "another connection";
  h.id = 5;
  // A greeting that the node does not know: but the cookie is taken.
  EXPECT_EQ(hello(1, 1).type, udp::PacketType::kRefuse);
}

TEST_F(HandshakeTest, AnswersLeaveFromTheAddressThatWasAsked) {
  Node& server = add();
  std::vector<std::byte> packet(udp::kBasePacket), out(udp::Endpoint::kTrainBytes);
  std::byte greeting[2 * sizeof(Traffic) + 8] = {};
  const auto ours = [](std::uint32_t host) {
    auto address = Network::address_of(host);
    address.port = 0;
    return address;
  };
  udp::Handshake h, answer;
  h.type = udp::PacketType::kHello;
  h.greeting = greeting;
  for (std::uint64_t id : {5, 6}) {
    const auto asked = ours(static_cast<std::uint32_t>(100 + id));
    h.id = id;
    h.cookie = {};
    for (auto type :
         {udp::PacketType::kRetry, udp::PacketType::kAccept, udp::PacketType::kAccept}) {
      udp::write_handshake(packet, h);
      udp::write_check(packet);
      server.endpoint().receive(Network::address_of(9), packet, network_.now(), asked);
      const udp::Train t = server.endpoint().transmit(out, network_.now());
      ASSERT_TRUE(udp::read_handshake(std::span(out).first(t.bytes), &answer));
      EXPECT_EQ(answer.type, type);
      EXPECT_EQ(t.from, asked);
      if (type == udp::PacketType::kRetry) h.cookie = answer.cookie;
    }
  }
}

TEST_F(HandshakeTest, HalfOpenConnectionsAreFewAndForgotten) {
  udp::Options options;
  options.most_half_open = 10;
  Node& server = add(options);
  std::vector<std::byte> packet(udp::kBasePacket), out(udp::Endpoint::kTrainBytes);
  std::byte greeting[2 * sizeof(Traffic) + 8] = {};
  for (std::uint64_t i = 1; i <= 30; ++i) {
    udp::Handshake h;
    h.type = udp::PacketType::kHello;
    h.id = i;
    h.greeting = greeting;
    for (int round = 0; round < 2; ++round) {
      udp::write_handshake(packet, h);
      udp::write_check(packet);
      server.endpoint().receive(Network::address_of(9), packet, network_.now());
      const udp::Train t = server.endpoint().transmit(out, network_.now());
      udp::Handshake answer;
      ASSERT_TRUE(udp::read_handshake(std::span(out).first(t.bytes), &answer));
      h.cookie = answer.cookie;
    }
  }
  EXPECT_EQ(server.endpoint().connections(), 10u);
  EXPECT_EQ(server.endpoint().half_open(), 10u);
  server.endpoint().on_timeout(network_.now() + 6 * kSecond);
  EXPECT_EQ(server.endpoint().connections(), 0u);
  EXPECT_EQ(server.endpoint().half_open(), 0u);
}

TEST_F(HandshakeTest, AServerHasOnlySoManyConnectionsAndRefusesMore) {
  udp::Options options;
  options.most_connections = 3;
  add(options);
  std::vector<Talk*> talks;
  for (int i = 0; i < 4; ++i) {
    add();
    Node& client = network_.node(network_.nodes() - 1);
    talks.push_back(&client.connect(0, traffic(1, 1, 0), traffic(2, 1, 0)));
    ASSERT_TRUE(until([&] { return talks.back()->established || talks.back()->down; }));
  }
  EXPECT_TRUE(talks[2]->established);
  EXPECT_TRUE(talks[3]->down);
  EXPECT_EQ(talks[3]->err, EAGAIN);
  EXPECT_EQ(network_.node(0).endpoint().connections(), 3u);
}

}  // namespace
}  // namespace clan::test

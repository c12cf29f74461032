// The transport's single promises, one at a time, over the simulated network.
#include "link/udp/endpoint.h"

#include <gtest/gtest.h>

#include "udp/allocations.h"
#include "udp/simulation.h"
#include "udp/toy_security.h"

namespace clan::test {
namespace {

using udp::kMillisecond;
using udp::kSecond;

Traffic traffic(std::uint64_t seed, std::uint32_t urgent, std::uint32_t bulk,
                std::size_t urgent_bytes = 64, std::size_t bulk_bytes = 100'000) {
  Traffic t;
  t.seed = seed;
  t.messages[0] = urgent;
  t.messages[3] = bulk;
  t.most_bytes[0] = urgent_bytes;
  t.most_bytes[3] = bulk_bytes;
  t.interval = 50'000;
  return t;
}

class EndpointTest : public testing::Test {
 protected:
  EndpointTest() : network_(7) {}
  void TearDown() override { EXPECT_EQ(network_.problem(), ""); }

  Node& add(udp::Options options = {}, udp::Security* security = nullptr) {
    return network_.add_node(options, security);
  }
  bool finish(std::uint64_t within = 5 * kSecond) {
    return network_.run(network_.now() + within, [&] {
      for (std::size_t i = 0; i < network_.nodes(); ++i) {
        if (network_.node(i).busy()) return false;
      }
      return true;
    });
  }
  template <typename Condition>
  bool until(Condition&& condition, std::uint64_t within = 60 * kSecond) {
    return network_.run(network_.now() + within, condition);
  }

  Network network_;
};

// --- beginning -----------------------------------------------------------------------------------

TEST_F(EndpointTest, ConnectsInTwoRoundTripsAndCarriesMessagesBothWays) {
  add(), add();
  Talk& talk = network_.node(0).connect(1, traffic(1, 50, 5), traffic(2, 50, 5));
  ASSERT_TRUE(until([&] { return talk.established; }));
  EXPECT_EQ(network_.now() / 1000, 4 * 50u);
  EXPECT_TRUE(finish());
  EXPECT_EQ(talk.connection->counters().lost, 0u);
}

TEST_F(EndpointTest, AServerThatIsNotThereIsATimeOut) {
  add(), add();
  network_.path(0, 1).cut = true;
  Talk& talk = network_.node(0).connect(1, traffic(1, 1, 0), traffic(2, 1, 0));
  ASSERT_TRUE(until([&] { return talk.down; }));
  EXPECT_EQ(talk.err, ETIMEDOUT);
  EXPECT_EQ(network_.now() / kSecond, 10u);
  EXPECT_EQ(network_.node(0).endpoint().connections(), 0u);
}

TEST_F(EndpointTest, ARefusalSaysWhy) {
  add(), add().set_refusal(EACCES);
  Talk& talk = network_.node(0).connect(1, traffic(1, 1, 0), traffic(2, 1, 0));
  ASSERT_TRUE(until([&] { return talk.down; }));
  EXPECT_EQ(talk.err, EACCES);
  EXPECT_EQ(network_.node(1).endpoint().connections(), 0u);
}

TEST_F(EndpointTest, HelloWithoutACookieMakesNoStateAndGetsALesserAnswer) {
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
    ASSERT_EQ(t.bytes, udp::kRetryBytes);
  }
  EXPECT_EQ(server.endpoint().connections(), 0u);
  EXPECT_EQ(server.endpoint().counters().retries, 10'000u);
  EXPECT_EQ(server.endpoint().counters().bad_cookies, 5'000u);
}

TEST_F(EndpointTest, ACookieIsGoodForItsAddressAndItsTime) {
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

TEST_F(EndpointTest, HalfOpenConnectionsAreFewAndForgotten) {
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

// --- ending --------------------------------------------------------------------------------------

TEST_F(EndpointTest, ClosingInGoodOrderDeliversEverythingFirst) {
  add(), add();
  network_.path(0, 1).loss_ppm = 100'000;
  Talk& talk = network_.node(0).connect(1, traffic(1, 200, 20), traffic(2, 0, 0));
  ASSERT_TRUE(until([&] { return talk.next_out[0] == 200 && talk.next_out[3] == 20; }));
  network_.node(0).close(talk);
  ASSERT_TRUE(until([&] { return talk.down; }));
  EXPECT_EQ(talk.err, 0);
  Talk& other = *network_.node(1).talks().at(0);
  EXPECT_TRUE(other.received_all());
  EXPECT_TRUE(other.down);
  EXPECT_EQ(other.err, 0);
  network_.run_for(kSecond);
  EXPECT_EQ(network_.node(0).endpoint().connections(), 0u);
  EXPECT_EQ(network_.node(1).endpoint().connections(), 0u);
}

TEST_F(EndpointTest, AnAbortIsToldAtOnce) {
  add(), add();
  Talk& talk = network_.node(0).connect(1, traffic(1, 10, 100), traffic(2, 0, 100));
  ASSERT_TRUE(until([&] { return talk.next_in[3] > 3; }));
  const std::uint64_t then = network_.now();
  network_.node(0).close(talk, ECANCELED);
  Talk& other = *network_.node(1).talks().at(0);
  ASSERT_TRUE(until([&] { return other.down && talk.down; }));
  EXPECT_EQ(other.err, ECONNRESET);
  EXPECT_EQ(talk.err, ECANCELED);
  EXPECT_LT(network_.now() - then, 5 * kMillisecond);
}

TEST_F(EndpointTest, APeerThatWasRestartedIsKnownAfterARoundTripAndAnswersAgain) {
  add(), add();
  Talk& talk = network_.node(0).connect(1, traffic(1, 10'000, 0), traffic(2, 0, 0));
  ASSERT_TRUE(until([&] { return talk.confirmed > 100; }));
  network_.node(1).restart();
  const std::uint64_t then = network_.now();
  ASSERT_TRUE(until([&] { return talk.down; }));
  EXPECT_EQ(talk.err, ECONNRESET);
  EXPECT_LT(network_.now() - then, 10 * kMillisecond);
  network_.node(0).connect(1, traffic(3, 50, 5), traffic(4, 50, 5));
  EXPECT_TRUE(finish());
}

TEST_F(EndpointTest, AClientThatWasRestartedConnectsAgainAndItsOldConnectionDies) {
  add(), add();
  Talk& talk = network_.node(0).connect(1, traffic(1, 100, 0), traffic(2, 100'000, 0));
  ASSERT_TRUE(until([&] { return talk.next_in[0] > 100; }));
  network_.node(0).restart();
  network_.node(0).connect(1, traffic(3, 50, 5), traffic(4, 50, 5));
  EXPECT_TRUE(finish());
  Talk& old = *network_.node(1).talks().at(0);
  EXPECT_TRUE(old.down);
  EXPECT_EQ(old.err, ECONNRESET);
}

TEST_F(EndpointTest, APeerThatHasGoneSilentIsAskedAndThenDead) {
  add(), add();
  Talk& talk = network_.node(0).connect(1, traffic(1, 1, 0), traffic(2, 1, 0));
  ASSERT_TRUE(finish());
  network_.run_for(60 * kSecond);
  EXPECT_FALSE(talk.down) << "idle, but alive";
  network_.path(0, 1).cut = network_.path(1, 0).cut = true;
  const std::uint64_t then = network_.now();
  Talk& other = *network_.node(1).talks().at(0);
  ASSERT_TRUE(until([&] { return talk.down && other.down; }));
  EXPECT_EQ(talk.err, ETIMEDOUT);
  EXPECT_EQ(other.err, ETIMEDOUT);
  EXPECT_LE(network_.now() - then, 26 * kSecond);
}

TEST_F(EndpointTest, AResetIsBelievedOnlyForAPacketThatIsUnderWay) {
  add(), add();
  Talk& talk = network_.node(0).connect(1, traffic(1, 5, 0), traffic(2, 5, 0));
  ASSERT_TRUE(finish());
  network_.run_for(100 * kMillisecond);
  for (std::uint64_t number = 0; number < 200; ++number) {
    udp::Handshake h;
    h.type = udp::PacketType::kReset;
    h.to = network_.node(1).talks().at(0)->connection->id();  // the id only the two know
    h.number = number;
    std::byte packet[100];
    const std::size_t n = udp::write_handshake(packet, h);
    udp::write_check(std::span(packet).first(n));
    network_.node(0).receive(Network::address_of(1), std::span(packet).first(n));
  }
  EXPECT_FALSE(talk.down);
}

// --- moving --------------------------------------------------------------------------------------

TEST_F(EndpointTest, APeerThatMovesIsAskedAtItsNewAddressAndFollowed) {
  add(), add();
  Talk& talk = network_.node(0).connect(1, traffic(1, 3000, 100), traffic(2, 3000, 100));
  ASSERT_TRUE(until([&] { return talk.confirmed > 50; }));
  network_.node(0).move(77);
  EXPECT_TRUE(finish(20 * kSecond));
  EXPECT_FALSE(talk.down);
  EXPECT_EQ(network_.node(1).talks().at(0)->connection->address().port, 77);
}

TEST_F(EndpointTest, APacketFromAStrangersAddressMovesNothing) {
  add(), add(), add();
  Talk& talk = network_.node(0).connect(1, traffic(1, 5, 0), traffic(2, 5, 0));
  ASSERT_TRUE(finish());
  // A packet of node 0, right in every part, is caught and arrives from node 2, which cannot answer
  // the question that an address is asked before it is believed.
  network_.path(0, 1).cut = true;
  Talk& other = *network_.node(1).talks().at(0);
  other.in.messages[1] = 1;
  const std::size_t n = message_bytes(other.in, 1, 0);
  std::vector<std::byte> bytes(n), out(udp::Endpoint::kTrainBytes);
  std::byte header[16] = {};
  std::memcpy(header + 8, &other.in.seed, 8);
  // as the simulation does for channel 1
  fill_pattern(bytes, mix(other.in.seed * 1'000'003 + 7919), 0);
  ASSERT_EQ(network_.node(0).endpoint().send(*talk.connection, 1, {header, bytes}), 0);
  const udp::Train t = network_.node(0).endpoint().transmit(out, network_.now());
  ASSERT_GT(t.bytes, 0u);
  const auto& heard = other.connection->counters();
  const std::uint64_t before = heard.packets_received;
  network_.node(1).endpoint().receive(Network::address_of(2), std::span(out).first(t.bytes),
                                      network_.now());
  EXPECT_EQ(heard.packets_received, before + 1) << "it is a packet of the connection";
  EXPECT_EQ(other.connection->address(), Network::address_of(0));
  network_.node(1).pump();
  network_.run_for(300 * kMillisecond);
  EXPECT_EQ(other.connection->address(), Network::address_of(0));
  network_.path(0, 1).cut = false;
  EXPECT_TRUE(until([&] { return other.received_all(); }));
  EXPECT_EQ(other.connection->address(), Network::address_of(0));
}

// --- bulk and small messages ---------------------------------------------------------------------

TEST_F(EndpointTest, SmallMessagesShareAPacket) {
  add(), add();
  Talk& talk = network_.node(0).connect(1, traffic(1, 0, 0), traffic(2, 0, 0));
  ASSERT_TRUE(until([&] { return talk.established; }));
  network_.run_for(100 * kMillisecond);
  const std::uint64_t before = talk.connection->counters().packets_sent;
  std::byte header[16] = {};
  Talk& other = *network_.node(1).talks().at(0);
  other.in.messages[0] = 100;
  for (std::uint64_t i = 0; i < 100; ++i) {
    std::memcpy(header, &i, 8);
    std::memcpy(header + 8, &other.in.seed, 8);
    std::byte bytes[64];
    const std::size_t n = message_bytes(other.in, 0, i);
    ASSERT_LE(n, sizeof bytes);
    fill_pattern(std::span(bytes, n), mix(other.in.seed * 1'000'003 + i), 0);
    ASSERT_EQ(network_.node(0).endpoint().send(*talk.connection, 0, {header, {bytes, n}}), 0);
  }
  network_.node(0).pump();
  ASSERT_TRUE(until([&] { return other.received_all(); }));
  EXPECT_LE(talk.connection->counters().packets_sent - before, 6u);
}

TEST_F(EndpointTest, SmallMessagesDoNotWaitBehindBulk) {
  add(), add();
  PathModel slow;
  slow.mtu = 1472;
  slow.bytes_per_second = 12'500'000;
  slow.queue_bytes = 10'000'000;
  network_.set_all_paths(slow);
  // 10 MB of bulk are queued, 0.8 s of the path; then a small message.
  Talk& talk = network_.node(0).connect(1, traffic(1, 0, 0), traffic(2, 0, 0));
  ASSERT_TRUE(until([&] { return talk.established && network_.node(1).talks().size() == 1; }));
  Talk& other = *network_.node(1).talks().at(0);
  std::vector<std::byte> payload(10'000'000);
  std::byte header[16] = {};
  std::memcpy(header + 8, &other.in.seed, 8);
  fill_pattern(payload, mix(other.in.seed * 1'000'003 + 3 * 7919), 0);
  ASSERT_EQ(network_.node(0).endpoint().send(*talk.connection, 3, {header, payload, false}), 0);
  network_.node(0).pump();
  network_.run_for(200 * kMillisecond);
  ASSERT_GT(talk.connection->queued_bytes(3), 1'000'000u);
  const std::uint64_t then = network_.now();
  other.in.messages[0] = 1;
  const std::size_t n = message_bytes(other.in, 0, 0);
  auto small = pattern(n, mix(other.in.seed * 1'000'003), 0);
  ASSERT_EQ(network_.node(0).endpoint().send(*talk.connection, 0, {header, small}), 0);
  network_.node(0).pump();
  ASSERT_TRUE(until([&] { return other.next_in[0] == 1; }));
  EXPECT_LT(network_.now() - then, 20 * kMillisecond);
  EXPECT_GT(talk.connection->queued_bytes(3), 1'000'000u) << "the bulk is still on its way";
}

TEST_F(EndpointTest, BulkIsNotStarvedBySmallMessages) {
  add(), add();
  PathModel slow;
  slow.mtu = 1472;
  slow.bytes_per_second = 1'250'000;
  network_.set_all_paths(slow);
  Talk& talk =
      network_.node(0).connect(1, traffic(1, 1'000'000, 100, 60, 20'000), traffic(2, 0, 0));
  ASSERT_TRUE(until([&] { return network_.node(1).talks().size() == 1; }));
  Talk& other = *network_.node(1).talks().at(0);
  EXPECT_TRUE(until([&] { return other.next_in[3] == 100; }, 10 * kSecond));
  EXPECT_FALSE(talk.sent_all());
  EXPECT_GT(other.next_in[0], 1000u);
}

TEST_F(EndpointTest, BulkFillsThePathWithoutFillingItsQueue) {
  add(), add();
  PathModel p;
  p.delay = 1 * kMillisecond;
  p.bytes_per_second = 125'000'000;
  p.queue_bytes = 100'000'000;
  p.mtu = 1472;
  network_.set_all_paths(p);
  Talk& talk = network_.node(0).connect(1, traffic(1, 0, 20'000, 64, 200'000), traffic(2, 0, 0));
  ASSERT_TRUE(until([&] { return network_.node(1).talks().size() == 1; }));
  network_.run_for(200 * kMillisecond);
  const std::uint64_t before = talk.connection->counters().bytes_sent;
  const std::uint64_t smoothed = talk.connection->rtt().smoothed();
  network_.run_for(500 * kMillisecond);
  const std::uint64_t sent = talk.connection->counters().bytes_sent - before;
  EXPECT_GT(sent, 125'000'000 / 2 * 8 / 10) << "at least 80 % of what the path carries";
  EXPECT_LT(smoothed, 6 * kMillisecond);
}

TEST_F(EndpointTest, OnePercentOfLossCostsLittle) {
  add(), add();
  PathModel p;
  p.delay = 500'000;
  p.bytes_per_second = 125'000'000;
  p.loss_ppm = 10'000;
  p.mtu = 1472;
  network_.set_all_paths(p);
  Talk& talk = network_.node(0).connect(1, traffic(1, 0, 20'000, 64, 200'000), traffic(2, 0, 0));
  ASSERT_TRUE(until([&] { return network_.node(1).talks().size() == 1; }));
  network_.run_for(200 * kMillisecond);
  const std::uint64_t before = talk.connection->counters().bytes_sent;
  network_.run_for(500 * kMillisecond);
  EXPECT_GT(talk.connection->counters().bytes_sent - before, 125'000'000 / 2 / 2);
}

// --- path MTU ------------------------------------------------------------------------------------

TEST_F(EndpointTest, TheLargestPacketThatFitsIsFound) {
  add(), add();
  PathModel p;
  p.mtu = 8972;
  network_.set_all_paths(p);
  Talk& talk = network_.node(0).connect(1, traffic(1, 20, 20), traffic(2, 20, 20));
  ASSERT_TRUE(finish());
  network_.run_for(5 * kSecond);
  EXPECT_EQ(talk.connection->mtu().current(), 8952u);
}

TEST_F(EndpointTest, APathThatShrinksIsNoticedAndUsed) {
  add(), add();
  PathModel p;
  p.mtu = 8972;
  network_.set_all_paths(p);
  Talk& talk = network_.node(0).connect(1, traffic(1, 0, 1000, 64, 200'000), traffic(2, 0, 0));
  ASSERT_TRUE(
      until([&] { return talk.confirmed > 20 && talk.connection->mtu().current() == 8952; }));
  p.mtu = 1400;
  network_.set_all_paths(p);
  const std::uint64_t then = network_.now();
  const std::uint64_t confirmed = talk.confirmed;
  ASSERT_TRUE(until([&] { return talk.confirmed > confirmed + 20; }));
  EXPECT_LT(network_.now() - then, kSecond);
  EXPECT_EQ(talk.connection->mtu().current(), 1200u);
  EXPECT_EQ(talk.connection->mtu().black_holes(), 1u);
}

// --- security ------------------------------------------------------------------------------------

TEST_F(EndpointTest, WithAKeyEverythingWorksOverABadPath) {
  for (udp::Mode mode : {udp::Mode::kIntegrity, udp::Mode::kEncrypt}) {
    ToySecurity a(mode, 99), b(mode, 99);
    Network network(3);
    network.add_node({}, &a), network.add_node({}, &b);
    PathModel p;
    p.loss_ppm = p.damage_ppm = p.copy_ppm = 30'000;
    p.jitter = 100'000;
    network.set_all_paths(p);
    network.node(0).connect(1, traffic(1, 100, 20), traffic(2, 100, 20));
    EXPECT_TRUE(network.run(10 * kSecond,
                            [&] { return !network.node(0).busy() && !network.node(1).busy(); }));
    EXPECT_EQ(network.problem(), "");
    EXPECT_GT(network.node(0).endpoint().counters().wrong_check +
                  network.node(1).endpoint().counters().wrong_check,
              0u);
  }
}

TEST_F(EndpointTest, WithoutTheKeyThereIsNoConnection) {
  ToySecurity right(udp::Mode::kEncrypt, 99), wrong(udp::Mode::kEncrypt, 98);
  add({}, &right), add({}, &wrong);
  Talk& talk = network_.node(1).connect(0, traffic(1, 1, 0), traffic(2, 1, 0));
  ASSERT_TRUE(until([&] { return talk.down; }));
  EXPECT_EQ(talk.err, ETIMEDOUT);
  EXPECT_EQ(network_.node(0).endpoint().connections(), 0u);
  EXPECT_GT(network_.node(0).endpoint().counters().wrong_check, 0u);
}

TEST_F(EndpointTest, EndsOfDifferentModesRefuseEachOther) {
  ToySecurity key(udp::Mode::kEncrypt, 99);
  add({}, &key), add();
  Talk& talk = network_.node(1).connect(0, traffic(1, 1, 0), traffic(2, 1, 0));
  Talk& keyed = network_.node(0).connect(1, traffic(3, 1, 0), traffic(4, 1, 0));
  ASSERT_TRUE(until([&] { return talk.down && keyed.down; }));
  EXPECT_EQ(talk.err, EPROTO);
  EXPECT_EQ(keyed.err, ETIMEDOUT) << "a refusal without a MAC could be anybody's";
  EXPECT_EQ(network_.node(0).endpoint().connections(), 0u);
  EXPECT_EQ(network_.node(1).endpoint().connections(), 0u);
}

TEST_F(EndpointTest, WithAKeyALongPathTakesNoLongerThanItsRoundTrips) {
  ToySecurity a(udp::Mode::kEncrypt, 99), b(udp::Mode::kEncrypt, 99);
  add({}, &a), add({}, &b);
  PathModel p;
  p.delay = 45 * kMillisecond;  // HELLO leaves three times before the first answer
  network_.set_all_paths(p);
  Talk& talk = network_.node(0).connect(1, traffic(1, 1, 0), traffic(2, 1, 0));
  ASSERT_TRUE(until([&] { return talk.established; }));
  EXPECT_LE(network_.now() / kMillisecond, 4 * 45u);
  EXPECT_TRUE(finish());
}

// RESET for each packet that node 0 may have under way to node 1, with a MAC under `key`.
void send_resets(Network& network, udp::Security& key) {
  for (std::uint64_t number = 1; number < 3000; ++number) {
    udp::Handshake h;
    h.type = udp::PacketType::kReset;
    h.mode = key.mode();
    h.to = network.node(1).talks().at(0)->connection->id();
    h.number = number;
    std::byte packet[100];
    const std::size_t n = udp::write_handshake(packet, h);
    const udp::Tag tag = key.mac(std::span(packet).first(h.signed_bytes));
    std::copy(tag.begin(), tag.end(), packet + h.signed_bytes);
    udp::write_check(std::span(packet).first(n));
    network.node(0).receive(Network::address_of(1), std::span(packet).first(n));
  }
}

TEST_F(EndpointTest, ResetsNeedTheKeyToo) {
  ToySecurity a(udp::Mode::kIntegrity, 99), b(udp::Mode::kIntegrity, 99),
      wrong(udp::Mode::kIntegrity, 98);
  add({}, &a), add({}, &b);
  Talk& talk = network_.node(0).connect(1, traffic(1, 10'000, 0), traffic(2, 0, 0));
  ASSERT_TRUE(until([&] { return talk.confirmed > 100 && talk.connection->under_way() > 0; }));
  send_resets(network_, wrong);
  EXPECT_EQ(network_.node(0).endpoint().counters().wrong_check, 2999u);
  EXPECT_EQ(network_.node(0).endpoint().counters().resets_taken, 0u);
  EXPECT_FALSE(talk.down);
  network_.node(1).restart();
  const std::uint64_t then = network_.now();
  ASSERT_TRUE(until([&] { return talk.down; }));
  EXPECT_EQ(talk.err, ECONNRESET);
  EXPECT_LT(network_.now() - then, 10 * kMillisecond);
}

// Any end with the key makes a RESET for whatever id and number it is asked for: a MAC is no proof.
TEST_F(EndpointTest, AResetWithARightMacEndsNoConnectionWhosePeerAnswers) {
  ToySecurity a(udp::Mode::kIntegrity, 99), b(udp::Mode::kIntegrity, 99);
  add({}, &a), add({}, &b);
  Talk& talk = network_.node(0).connect(1, traffic(1, 2'000, 0), traffic(2, 0, 0));
  ASSERT_TRUE(until([&] { return talk.confirmed > 100 && talk.connection->under_way() > 0; }));
  send_resets(network_, a);
  EXPECT_GT(network_.node(0).endpoint().counters().resets_taken, 0u);
  EXPECT_FALSE(talk.down);
  EXPECT_TRUE(finish());
  EXPECT_FALSE(talk.down);
}

// --- bounds --------------------------------------------------------------------------------------

TEST_F(EndpointTest, GarbageAllocatesNothingAndIsCounted) {
  add(), add();
  Talk& talk = network_.node(0).connect(1, traffic(1, 5, 0), traffic(2, 5, 0));
  ASSERT_TRUE(finish());
  Random r(4);
  udp::Endpoint& e = network_.node(1).endpoint();
  const std::size_t memory = e.memory_bytes();
  std::vector<std::byte> packet(1400), out(udp::Endpoint::kTrainBytes);
  const std::uint64_t id = network_.node(1).talks().at(0)->connection->id();
  auto flood = [&](int count) {
    for (int i = 0; i < count; ++i) {
      fill_pattern(packet, r.next(), 0);
      const std::size_t n = 1 + r.below(packet.size());
      packet[0] = static_cast<std::byte>(0x10 | r.below(8));
      packet[1] = packet[2] = packet[3] = std::byte{0};
      // One that knows the id and can make a check is a peer (hostile_test.cc); so each has one of
      // the two.
      if (r.below(2) == 0 && n >= 16) {
        udp::Writer w{std::span(packet).subspan(8)};
        w.number(id);
      } else if (n >= 8) {
        udp::write_check(std::span(packet).first(n));
      }
      e.receive(Network::address_of(9), std::span(packet).first(n), network_.now());
      while (e.transmit(out, network_.now()).bytes > 0) {
      }
    }
  };
  flood(100);
#if CLAN_COUNTS_ALLOCATIONS
  const std::uint64_t before = allocations();
  flood(20'000);
  EXPECT_LE(allocations() - before, 20u);
#else
  flood(20'000);
#endif
  EXPECT_LE(e.memory_bytes(), memory + 4096);
  EXPECT_GT(e.counters().wrong_check, 1000u);
  EXPECT_FALSE(talk.down);
}

TEST_F(EndpointTest, AnIdlePeerTakesLessThan16KilobytesAndNoTime) {
  Node& server = add();
  constexpr std::size_t kPeers = 300;
  for (std::size_t i = 0; i < kPeers; ++i) {
    add();
    network_.node(i + 1).connect(0, traffic(i + 1, 20, 2), traffic(i + 1000, 20, 2));
  }
  ASSERT_TRUE(finish(20 * kSecond));
  network_.run_for(15 * kSecond);  // long enough to be idle
  EXPECT_EQ(server.endpoint().connections(), kPeers);
  EXPECT_LT(server.endpoint().memory_bytes() / kPeers, 16u * 1024);
  const std::uint64_t before = network_.counters().sent;
  network_.run_for(10 * kSecond);
  EXPECT_LT(network_.counters().sent - before, kPeers * 12);
}

struct QuietSink final : udp::EndpointSink {
  std::uint64_t messages = 0, bytes = 0;
  udp::Connection* established = nullptr;
  int on_request(const udp::SocketAddress&, std::span<const std::byte>, std::span<std::byte>,
                 std::size_t*) override {
    return 0;
  }
  void on_established(udp::Connection& c, std::span<const std::byte>) override { established = &c; }
  bool on_fragment(udp::Connection&, std::uint8_t, std::span<const std::byte>, std::uint32_t,
                   std::uint32_t, std::span<const std::byte> piece) override {
    bytes += piece.size();
    return true;
  }
  void on_message(udp::Connection&, std::uint8_t, std::span<const std::byte>, std::uint32_t,
                  std::span<const std::byte>) override {
    ++messages;
  }
  void on_sent(udp::Connection&, std::uint8_t, std::uint64_t) override {}
  void on_down(udp::Connection&, int) override {}
};

// Two endpoints and nothing between them.
struct Two {
  QuietSink at_a, at_b;
  Random r{5};
  std::function<std::uint64_t()> random = [this] { return r.next() | 1; };
  udp::Endpoint a{{}, at_a, random, nullptr}, b{{}, at_b, random, nullptr};
  const udp::SocketAddress to_a = Network::address_of(0), to_b = Network::address_of(1);
  std::vector<std::byte> out = std::vector<std::byte>(udp::Endpoint::kTrainBytes);
  std::uint64_t now = 1, packets = 0;
  bool cut = false;

  void carry(udp::Endpoint& from, udp::Endpoint& to, const udp::SocketAddress& address) {
    for (;;) {
      const udp::Train t = from.transmit(out, now);
      if (t.bytes == 0) break;
      ++packets;
      for (std::size_t at = 0; at < t.bytes && !cut; at += t.segment) {
        to.receive(address, std::span(out).subspan(at, std::min(t.segment, t.bytes - at)), now);
      }
    }
    now += 5'000;
  }
  void exchange() {
    now += kMillisecond;
    for (udp::Endpoint* e : {&a, &b}) {
      if (now >= e->next_timeout()) e->on_timeout(now);
    }
    carry(a, b, to_a);
    carry(b, a, to_b);
  }
  void connect() {
    a.connect(to_b, {}, now);
    // the path's MTU is known then, and nothing is to be acknowledged
    for (int i = 0; i < 1'000; ++i) exchange();
    ASSERT_NE(at_a.established, nullptr);
    ASSERT_NE(at_b.established, nullptr);
  }
};

TEST_F(EndpointTest, APingPongTakesOnePacketEachWay) {
  Two two;
  two.connect();
  const std::vector<std::byte> bytes(64);
  const std::uint64_t before = two.packets;
  for (int i = 0; i < 20'000; ++i) {
    // Each end sends what it has before its program has looked at what has come.
    ASSERT_EQ(two.a.send(*two.at_a.established, 0, {{}, bytes}), 0);
    two.carry(two.a, two.b, two.to_a);
    two.carry(two.b, two.a, two.to_b);
    ASSERT_EQ(two.b.send(*two.at_b.established, 0, {{}, bytes}), 0);
    two.carry(two.b, two.a, two.to_b);
    two.carry(two.a, two.b, two.to_a);
  }
  EXPECT_EQ(two.at_a.messages, 20'000u);
  // Credit is told at once, each quarter of 256 KB: a message is charged with 64 bytes for its
  // header.
  const std::uint64_t credit = 2 * (20'000 * (64 + 64) / (64 * 1024));
  EXPECT_LE(two.packets - before, 40'000u + credit) << "no packet that only acknowledges";
}

TEST_F(EndpointTest, APeerThatLeavesTwoProbesUnansweredIsNamedOnce) {
  Two two;
  two.connect();
  udp::SocketAddress silent;
  EXPECT_FALSE(two.a.next_silent(&silent));
  two.cut = true;
  ASSERT_EQ(two.a.send(*two.at_a.established, 0, {{}, {}}), 0);
  unsigned named = 0;
  for (int i = 0; i < 1'000 && two.now < 5 * kSecond; ++i) {
    two.carry(two.a, two.b, two.to_a);
    two.now = std::max(two.now, two.a.next_timeout());
    two.a.on_timeout(two.now);
    if (!two.a.next_silent(&silent)) continue;
    ++named;
    EXPECT_TRUE(silent == two.to_b);
    EXPECT_EQ(two.at_a.established->counters().timeouts, 2u);
  }
  EXPECT_EQ(named, 1u);
}

#if CLAN_COUNTS_ALLOCATIONS
TEST_F(EndpointTest, TheDataPathDoesNotAllocateInTheSteadyState) {
  QuietSink at_a, at_b;
  Random r(5);
  auto random = [&] { return r.next() | 1; };
  udp::Endpoint a({}, at_a, random, nullptr), b({}, at_b, random, nullptr);
  const auto to_a = Network::address_of(0), to_b = Network::address_of(1);
  std::vector<std::byte> out(udp::Endpoint::kTrainBytes);
  std::uint64_t now = 1;
  int dropped = 0;
  auto exchange = [&] {
    for (auto [from, to, address] : {std::tuple{&a, &b, to_a}, std::tuple{&b, &a, to_b}}) {
      for (;;) {
        const udp::Train t = from->transmit(out, now);
        if (t.bytes == 0) break;
        for (std::size_t at = 0; at < t.bytes; at += t.segment) {
          if (++dropped % 100 == 0) continue;  // one in a hundred is lost
          to->receive(address, std::span(out).subspan(at, std::min(t.segment, t.bytes - at)), now);
        }
      }
    }
    now += 20'000;
    for (udp::Endpoint* e : {&a, &b}) {
      if (now >= e->next_timeout()) e->on_timeout(now);
    }
  };
  a.connect(to_b, {}, now);
  while (at_a.established == nullptr || at_b.established == nullptr) exchange();
  std::vector<std::byte> bulk(100'000), small(100);
  std::byte header[24] = {};
  auto work = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      udp::Connection& c = *at_a.established;
      if (c.queued_bytes(3) < 1'000'000) (void)a.send(c, 3, {header, bulk, false});
      for (int k = 0; k < 5; ++k) {
        (void)a.send(c, 0, {header, small});
        (void)b.send(*at_b.established, 0, {header, small});
      }
      exchange();
    }
  };
  work(5000);
  const std::uint64_t before = allocations();
  const std::uint64_t messages = at_b.messages;
  work(5000);
  EXPECT_GT(at_b.messages - messages, 10'000u);
  EXPECT_LE(allocations() - before, 20u) << "rings that still grow to the longest queue so far";
}
#endif

}  // namespace
}  // namespace clan::test

// How connections end, move and are protected; over the simulated network.
#include "link/udp/transport/endpoint.h"

#include "udp/allocations.h"
#include "udp/endpoint_fixture.h"
#include "udp/toy_security.h"

namespace clan::test {
namespace {

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

TEST_F(EndpointTest, AnIdlePeerThatWasRestartedIsKnownWhenItIsAsked) {
  add(), add();
  Talk& talk = network_.node(0).connect(1, traffic(1, 5, 0), traffic(2, 5, 0));
  ASSERT_TRUE(finish());
  network_.run_for(kSecond);
  network_.node(1).restart();
  ASSERT_TRUE(until([&] { return talk.down; }, 11 * kSecond));
  EXPECT_EQ(talk.err, ECONNRESET);
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

// All that is under way goes where nobody is any more, so the question is not among the oldest two.
TEST_F(EndpointTest, APeerThatMovesIsFollowedThoughTheQuestionIsLost) {
  add(), add();
  Talk& talk = network_.node(0).connect(1, traffic(1, 3000, 100), traffic(2, 3000, 100));
  ASSERT_TRUE(until([&] { return talk.confirmed > 50; }));
  network_.node(0).move(77);
  network_.path(1, 0).cut = true;
  network_.run_for(10 * kMillisecond);
  network_.path(1, 0).cut = false;
  EXPECT_TRUE(finish(20 * kSecond));
  EXPECT_FALSE(talk.down);
  EXPECT_EQ(network_.node(1).talks().at(0)->connection->address().port, 77);
}

TEST_F(EndpointTest, APeerThatMovesIsFollowedThoughItsAnswerIsLost) {
  add(), add();
  Talk& talk = network_.node(0).connect(1, traffic(1, 3000, 100), traffic(2, 3000, 100));
  ASSERT_TRUE(until([&] { return talk.confirmed > 50; }));
  network_.path(0, 1).loss_ppm = network_.path(1, 0).loss_ppm = 300'000;
  network_.node(0).move(77);
  network_.run_for(50 * kMillisecond);
  network_.path(0, 1).loss_ppm = network_.path(1, 0).loss_ppm = 0;
  EXPECT_TRUE(finish(20 * kSecond));
  EXPECT_FALSE(talk.down);
  EXPECT_EQ(network_.node(1).talks().at(0)->connection->address().port, 77);
}

// A link that is shut down waits for the acknowledgement of all, wherever the peer is by then.
TEST_F(EndpointTest, APeerThatMovesWhileAnEndClosesGetsAllThatWasSentBefore) {
  add(), add();
  Talk& talk = network_.node(0).connect(1, traffic(1, 3000, 0), traffic(2, 3000, 100));
  ASSERT_TRUE(until([&] { return talk.next_in[0] > 50; }));
  Talk& other = *network_.node(1).talks().at(0);
  network_.node(1).close(other);
  ASSERT_GT(other.connection->under_way(), 0u);
  network_.node(0).move(77);
  ASSERT_TRUE(until([&] { return talk.down && other.down; }));
  EXPECT_EQ(other.err, 0);
  EXPECT_EQ(talk.err, 0);
  for (std::size_t c = 0; c < udp::kChannels; ++c) EXPECT_EQ(talk.next_in[c], other.next_out[c]);
}

// The old path's shortest round trip would make a queue of all of the new one's.
TEST_F(EndpointTest, APeerThatMovesFartherAwayIsSentAsMuchAsItsNewPathCarries) {
  add(), add();
  PathModel path;
  path.bytes_per_second = 12'500'000;
  path.mtu = 1472;
  network_.set_all_paths(path);
  network_.node(0).connect(1, traffic(1, 100'000, 0), traffic(2, 0, 100'000));
  ASSERT_TRUE(until([&] { return network_.node(1).talks().size() == 1; }));
  Talk& other = *network_.node(1).talks().at(0);
  network_.run_for(kSecond);
  network_.node(0).move(77);
  path.delay = 20 * kMillisecond;
  network_.set_all_paths(path);
  ASSERT_TRUE(until([&] { return other.connection->address().port == 77; }));
  network_.run_for(kSecond);
  const std::uint64_t before = other.connection->counters().bytes_sent;
  network_.run_for(kSecond);
  EXPECT_GT(other.connection->counters().bytes_sent - before, path.bytes_per_second / 2);
}

TEST_F(EndpointTest, APeerThatHasMovedStillTakesPacketsOfItsSizeOnly) {
  udp::Options small;
  small.largest_packet = 1472;
  add(small), add();
  Talk& talk = network_.node(0).connect(1, traffic(1, 3000, 100), traffic(2, 3000, 100));
  ASSERT_TRUE(until([&] { return talk.confirmed > 50; }));
  network_.node(0).move(77);
  EXPECT_TRUE(finish(20 * kSecond));
  EXPECT_EQ(network_.node(1).talks().at(0)->connection->mtu().current(), small.largest_packet);
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
  EXPECT_GT(e.counters().wrong_check, 1000u);
  EXPECT_FALSE(talk.down);
}

}  // namespace
}  // namespace clan::test

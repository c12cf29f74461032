// One peer: what its messages share and wait for, the packets it takes, and what it costs.
#include "link/udp/transport/connection.h"

#include "udp/allocations.h"
#include "udp/endpoint_fixture.h"

namespace clan::test {
namespace {

class ConnectionTest : public EndpointTest {};

TEST_F(ConnectionTest, SmallMessagesShareAPacket) {
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

TEST_F(ConnectionTest, SmallMessagesDoNotWaitBehindBulk) {
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

TEST_F(ConnectionTest, BulkIsNotStarvedBySmallMessages) {
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

TEST_F(ConnectionTest, BulkFillsThePathWithoutFillingItsQueue) {
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

TEST_F(ConnectionTest, OnePercentOfLossCostsLittle) {
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

TEST_F(ConnectionTest, TheLargestPacketThatFitsIsFound) {
  add(), add();
  PathModel p;
  p.mtu = 8972;
  network_.set_all_paths(p);
  Talk& talk = network_.node(0).connect(1, traffic(1, 20, 20), traffic(2, 20, 20));
  ASSERT_TRUE(finish());
  network_.run_for(5 * kSecond);
  EXPECT_EQ(talk.connection->mtu().current(), 8952u);
}

// `clan ping` and `clan stat` show what was lost: a path without fault has lost nothing.
TEST_F(ConnectionTest, ProbesLargerThanThePathAreNotCountedAsLost) {
  add(), add();
  PathModel p;
  p.mtu = 1472;
  network_.set_all_paths(p);
  Talk& talk = network_.node(0).connect(1, traffic(1, 20, 20), traffic(2, 20, 20));
  ASSERT_TRUE(finish());
  network_.run_for(5 * kSecond);
  EXPECT_EQ(talk.connection->mtu().current(), 1472u);
  EXPECT_EQ(talk.connection->counters().lost, 0u);
}

TEST_F(ConnectionTest, APathThatShrinksIsNoticedAndUsed) {
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
}

// Nothing comes through a wire that is cut, so a probe that is lost there says nothing of its size.
TEST_F(ConnectionTest, TheLargestPacketThatFitsIsFoundThoughTheWireIsCutMeanwhile) {
  add(), add();
  PathModel p;
  p.mtu = 1200;  // the first probe is lost
  network_.set_all_paths(p);
  Talk& talk = network_.node(0).connect(1, traffic(1, 0, 0), traffic(2, 0, 0));
  ASSERT_TRUE(until([&] { return talk.established; }));
  p.cut = true;
  network_.set_all_paths(p);
  network_.run_for(5 * kSecond);
  p.mtu = 8972;
  p.cut = false;
  network_.set_all_paths(p);
  network_.run_for(3 * kSecond);
  EXPECT_EQ(talk.connection->mtu().current(), 8952u);
}

TEST_F(ConnectionTest, AnIdlePeerTakesLessThan16KilobytesAndNoTime) {
  Node& server = add();
  constexpr std::size_t kPeers = 300;
  for (std::size_t i = 0; i < kPeers; ++i) {
    add();
    network_.node(i + 1).connect(0, traffic(i + 1, 20, 2), traffic(i + 1000, 20, 2));
  }
  ASSERT_TRUE(finish(20 * kSecond));
  network_.run_for(15 * kSecond);  // long enough to be idle
  EXPECT_EQ(server.endpoint().connections(), kPeers);
  EXPECT_LT(server.memory(), std::int64_t{kPeers} * 16 * 1024);
  const std::uint64_t before = network_.counters().sent;
  network_.run_for(10 * kSecond);
  EXPECT_LT(network_.counters().sent - before, kPeers * 12);
}

struct QuietSink final : udp::EndpointSink, udp::MessageSink {
  std::uint64_t messages = 0, bytes = 0;
  udp::Connection* established = nullptr;
  int on_request(const udp::SocketAddress&, std::span<const std::byte>, std::span<std::byte>,
                 std::size_t*) override {
    return 0;
  }
  void on_established(udp::Connection& c, std::span<const std::byte>) override {
    established = &c;
    c.user = this;
  }
  bool on_fragment(std::uint8_t, std::span<const std::byte>, std::uint32_t, std::uint32_t,
                   std::span<const std::byte> piece) override {
    bytes += piece.size();
    return true;
  }
  void on_message(std::uint8_t, std::span<const std::byte>, std::uint32_t,
                  std::span<const std::byte>) override {
    ++messages;
  }
  void on_sent(std::uint8_t, std::uint64_t) override {}
  void on_down(udp::Connection&, int) override { ++downs; }
  unsigned downs = 0;
};

// Two endpoints and nothing between them.
struct Two {
  explicit Two(std::uint32_t largest_packet = udp::kLargestPacket,
               std::uint64_t urgent_credit = 256 * 1024)
      : options{.largest_packet = largest_packet, .credit = {urgent_credit, 0, 0, 8 << 20}} {}
  const udp::Options options;
  QuietSink at_a, at_b;
  Random r{5};
  std::function<std::uint64_t()> random = [this] { return r.next() | 1; };
  udp::Endpoint a{options, at_a, random, nullptr}, b{options, at_b, random, nullptr};
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

TEST_F(ConnectionTest, APingPongTakesOnePacketEachWay) {
  Two two;
  two.connect();
  const std::vector<std::byte> bytes(64);
  const std::uint64_t before = two.packets;
  for (int i = 0; i < 20'000; ++i) {
    // Each end sends what it has before its program has read what has come.
    ASSERT_EQ(two.a.send(*two.at_a.established, 0, {{}, bytes}), 0);
    two.carry(two.a, two.b, two.to_a);
    two.carry(two.b, two.a, two.to_b);
    ASSERT_EQ(two.b.send(*two.at_b.established, 0, {{}, bytes}), 0);
    two.carry(two.b, two.a, two.to_b);
    two.carry(two.a, two.b, two.to_a);
  }
  EXPECT_EQ(two.at_a.messages, 20'000u);
  // Credit is announced at once, each quarter of 256 KB: a message is charged with 64 bytes for its
  // header.
  const std::uint64_t credit = 2 * (20'000 * (64 + 64) / (64 * 1024));
  // A missing number is reported at once, also one that was never sent.
  const std::uint64_t skipped = 2 * (1 + 20'000 / (udp::OptimisticAckGuard::kEvery / 4));
  EXPECT_LE(two.packets - before, 40'000u + credit + skipped)
      << "no other packet that only acknowledges";
}

// The first packet has an acknowledgement beside its piece, and so is longer than the others would
// be.
TEST_F(ConnectionTest, PacketsOfATrainAreMadeEquallyLong) {
  Two two(1472);
  two.connect();
  const std::size_t piece = two.at_a.established->mtu().current() - 100;
  for (int round = 0; round < 50; ++round) {
    ASSERT_EQ(two.b.send(*two.at_b.established, 0, {{}, std::vector<std::byte>(8)}), 0);
    two.carry(two.b, two.a, two.to_b);
    const std::vector<std::byte> bytes(piece);
    for (int i = 0; i < 5; ++i) ASSERT_EQ(two.a.send(*two.at_a.established, 0, {{}, bytes}), 0);
    const std::uint64_t before = two.packets;
    two.carry(two.a, two.b, two.to_a);
    ASSERT_EQ(two.packets - before, 1u) << "trains, in round " << round;
    two.carry(two.b, two.a, two.to_b);
  }
  EXPECT_EQ(two.at_b.messages, 250u);
  EXPECT_EQ(two.at_b.established->counters().duplicates, 0u);
}

// A quarter of the window is asked about at once, also where the data fill each packet: what is
// under way may be all that the window allows, and the peer would wait with its answer.
TEST_F(ConnectionTest, FullPacketsAskForAnAnswerToo) {
  Two two(1472);
  two.connect();
  ASSERT_EQ(two.a.send(*two.at_a.established, 3, {{}, std::vector<std::byte>(200'000)}), 0);
  const udp::Train train = two.a.transmit(two.out, two.now);
  constexpr std::size_t kSome = 20;  // more than a quarter of the first window, less than all of it
  ASSERT_GT(train.bytes, kSome * train.segment);
  for (std::size_t i = 0; i < kSome; ++i) {
    two.b.receive(two.to_a, std::span(two.out).subspan(i * train.segment, train.segment), two.now);
  }
  EXPECT_GT(two.b.transmit(two.out, two.now).bytes, 0u) << "no time has passed";
}

TEST_F(ConnectionTest, APeerThatLeavesTwoProbesUnansweredIsNamedOnce) {
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

// From a terminal or by a debugger, with many peers: timers run before all that has come is read.
TEST_F(ConnectionTest, APeerThatHasAnsweredWhileThisProcessWasStoppedIsNotDead) {
  Two two;
  two.connect();
  ASSERT_EQ(two.a.send(*two.at_a.established, 0, {{}, {}}), 0);
  two.carry(two.a, two.b, two.to_a);
  two.now += 20 * kSecond;
  two.a.on_timeout(two.now);
  two.a.on_timeout(two.now + 1000);  // as of pacing
  two.b.on_timeout(two.now);
  two.carry(two.b, two.a, two.to_b);
  EXPECT_EQ(two.at_b.messages, 1u);
  EXPECT_EQ(two.at_a.downs, 0u);
}

// The peer refuses what comes behind so many messages that wait for the first, so the packets that
// have been under way longest would be refused again, and nothing would be acknowledged any more.
TEST_F(ConnectionTest, APeerThatWaitsForAMessageLostTwiceGetsItThoughItTakesNoOther) {
  Two two(udp::kBasePacket, 4 << 20);
  two.connect();
  while (two.at_a.established->congestion().window() < 200 * udp::kBasePacket) {
    ASSERT_EQ(two.a.send(*two.at_a.established, 3, {{}, std::vector<std::byte>(500'000)}), 0);
    for (int i = 0; i < 20; ++i) two.exchange();
  }
  const std::uint64_t before = two.at_b.messages;
  constexpr std::uint64_t kMany = 2 * udp::ReceiveChannel::kMostPending;
  for (std::uint64_t i = 0; i < kMany; ++i)
    ASSERT_EQ(two.a.send(*two.at_a.established, 0, {{}, {}}), 0);
  for (bool first = true;;) {
    const udp::Train t = two.a.transmit(two.out, two.now);
    if (t.bytes == 0) break;
    for (std::size_t at = 0; at < t.bytes; at += t.segment) {
      const std::size_t n = std::min(t.segment, t.bytes - at);
      if (!std::exchange(first, false)) two.b.receive(two.to_a, {&two.out[at], n}, two.now);
    }
  }
  ASSERT_EQ(two.at_a.established->queued_bytes(0), 0u) << "all of it is under way";
  two.carry(two.b, two.a, two.to_b);
  two.cut = true;
  two.carry(two.a, two.b, two.to_a);  // the first again
  two.cut = false;
  for (int i = 0; i < 20'000 && two.at_b.messages < before + kMany; ++i) two.exchange();
  EXPECT_EQ(two.at_b.messages, before + kMany);
  EXPECT_EQ(two.at_a.downs, 0u);
}

#if CLAN_COUNTS_ALLOCATIONS
TEST_F(ConnectionTest, TheDataPathDoesNotAllocateInTheSteadyState) {
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

#include "link/udp/io/packet_io.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "support/pattern.h"

namespace clan::udp {
namespace {

using test::pattern;

/// What its tests put there arrives; what is sent is noted.
struct FakeIo final : PacketIo {
  struct Packet {
    SocketAddress to;
    std::size_t segment;
    std::vector<std::byte> bytes;
  };
  Sent send(const Train& train, std::span<const std::byte> bytes) override {
    ++offered;
    if (answer != Sent::kSent) return answer;
    sent.push_back({train.to, train.segment, {bytes.begin(), bytes.end()}});
    return answer;
  }
  std::size_t receive(std::span<Arrival> out) override {
    std::size_t n = 0;
    for (; n < out.size() && !arrives.empty(); ++n) {
      current[n] = std::move(arrives.front());
      arrives.pop_front();
      out[n] = {current[n].to, current[n].bytes, current[n].segment};
    }
    return n;
  }
  bool next_refusal(SocketAddress* at) override {
    ++asked_for_refusals;
    if (refusals.empty()) return false;
    *at = refusals.front();
    refusals.pop_front();
    return true;
  }
  void doubt(const SocketAddress& at) override { doubted.push_back(at); }
  int descriptor() const override { return 55; }
  SocketAddress local_address() const override { return {}; }
  std::uint32_t packets_of_room() const override { return 100; }
  bool tells_of_room() const override { return tells; }
  using PacketIo::changed;

  Sent answer = Sent::kSent;
  bool tells = true;
  int offered = 0, asked_for_refusals = 0;
  std::vector<Packet> sent;
  std::deque<Packet> arrives;  ///< `to`: where it comes from
  Packet current[64];
  std::deque<SocketAddress> refusals;
  std::vector<SocketAddress> doubted;
};

SocketAddress address(std::uint16_t port) {
  SocketAddress at;
  at.ip[15] = 1;
  at.port = port;
  return at;
}

struct NotesSink final : EndpointSink, MessageSink {
  int on_request(const SocketAddress&, std::span<const std::byte>, std::span<std::byte>,
                 std::size_t* bytes) override {
    *bytes = 0;
    return 0;
  }
  void on_established(Connection& c, std::span<const std::byte>) override {
    connection = &c;
    c.user = this;
  }
  bool on_fragment(std::uint8_t, std::span<const std::byte>, std::uint32_t, std::uint32_t,
                   std::span<const std::byte>) override {
    return false;
  }
  void on_message(std::uint8_t, std::span<const std::byte>, std::uint32_t,
                  std::span<const std::byte>) override {
    ++messages;
  }
  void on_sent(std::uint8_t, std::uint64_t) override {}
  void on_down(Connection&, int err) override {
    connection = nullptr;
    down = err;
  }
  Connection* connection = nullptr;
  int messages = 0, down = -1;
};

/// Two endpoints with a pump each; what one has sent arrives at the other when it is carried there.
struct PumpTest : testing::Test {
  struct End {
    explicit End(std::uint16_t port, std::uint64_t seed)
        : at(address(port)),
          random(seed),
          endpoint(
              {}, sink, [this] { return random.next(); }, nullptr) {}
    SocketAddress at;
    test::Random random;
    NotesSink sink;
    Endpoint endpoint;
    FakeIo io;
    PacketPump pump{endpoint, io};
  };
  void carry(End& from, End& to) {
    for (auto& packet : from.io.sent) {
      to.io.arrives.push_back({from.at, packet.segment, std::move(packet.bytes)});
    }
    from.io.sent.clear();
  }
  void connect() {
    ASSERT_NE(a.endpoint.connect(b.at, {}, now), nullptr);
    for (int k = 0; k < 20; ++k) {
      exchange();
      now += 200'000;
    }
    ASSERT_NE(a.sink.connection, nullptr);
    ASSERT_NE(b.sink.connection, nullptr);
    a.io.offered = b.io.offered = 0;
  }
  void exchange() {
    (void)a.pump.run(now);
    carry(a, b);
    (void)b.pump.run(now);
    carry(b, a);
  }
  int send(std::size_t bytes, bool copy = true) {
    payload = pattern(bytes, 4);
    return a.endpoint.send(*a.sink.connection, 0, {{}, payload, copy});
  }
  std::vector<std::byte> payload;
  std::uint64_t now = 1'000'000;
  End a{1001, 1}, b{1002, 2};
};

TEST_F(PumpTest, SaysWhetherThereWasAnything) {
  connect();
  EXPECT_FALSE(a.pump.run(now));
  ASSERT_EQ(send(10), 0);
  EXPECT_TRUE(a.pump.run(now));
  ASSERT_EQ(a.io.sent.size(), 1u);
  EXPECT_EQ(a.io.sent[0].to, b.at);
  carry(a, b);
  EXPECT_TRUE(b.pump.run(now));
  EXPECT_EQ(b.sink.messages, 1);
}

TEST_F(PumpTest, TakesATrainApartIntoItsPackets) {
  connect();
  ASSERT_EQ(send(10), 0);
  EXPECT_TRUE(a.pump.send(now));
  ASSERT_EQ(send(10), 0);
  EXPECT_TRUE(a.pump.send(now));
  ASSERT_EQ(a.io.sent.size(), 2u);
  FakeIo::Packet train = a.io.sent[0];
  ASSERT_EQ(train.bytes.size(), a.io.sent[1].bytes.size());
  train.segment = train.bytes.size();
  train.bytes.insert(train.bytes.end(), a.io.sent[1].bytes.begin(), a.io.sent[1].bytes.end());
  a.io.sent.clear();
  b.io.arrives.push_back({a.at, train.segment, train.bytes});
  EXPECT_TRUE(b.pump.run(now));
  EXPECT_EQ(b.sink.messages, 2);
}

TEST_F(PumpTest, ATrainThatFindsNoRoomIsOfferedAgainAsItIs) {
  connect();
  ASSERT_EQ(send(10), 0);
  a.io.answer = PacketIo::Sent::kLater;
  EXPECT_FALSE(a.pump.run(now)) << "a thread that runs it until nothing is left can sleep";
  EXPECT_TRUE(a.pump.waits_for_room());
  EXPECT_EQ(a.io.offered, 1) << "not again until it is asked to";
  a.io.answer = PacketIo::Sent::kSent;
  EXPECT_TRUE(a.pump.run(now));
  EXPECT_FALSE(a.pump.waits_for_room());
  ASSERT_EQ(a.io.sent.size(), 1u);
  carry(a, b);
  EXPECT_TRUE(b.pump.run(now));
  EXPECT_EQ(b.sink.messages, 1);
}

// A thread that sleeps until the next time-out would not sleep at all.
TEST_F(PumpTest, WhatIsDueToBeSentIsNotDueAtOnceWhileATrainWaitsForRoom) {
  connect();
  ASSERT_EQ(send(10), 0);
  a.io.answer = PacketIo::Sent::kLater;
  (void)a.pump.run(now);
  ASSERT_NE(a.endpoint.connect(address(1003), {}, now), nullptr);
  (void)a.pump.run(now);
  EXPECT_LE(a.endpoint.next_timeout(), now) << "the HELLO";
  EXPECT_EQ(a.pump.next_timeout(), now + kMillisecond);
  a.io.answer = PacketIo::Sent::kSent;
  (void)a.pump.run(now);
  EXPECT_GT(a.endpoint.next_timeout(), now);
  EXPECT_EQ(a.pump.next_timeout(), a.endpoint.next_timeout());
}

TEST_F(PumpTest, ATrainIsOfferedAgainAfterAWhileWhereTheDescriptorTellsOfNoRoom) {
  connect();
  a.io.answer = PacketIo::Sent::kLater;
  for (const bool tells : {true, false}) {
    a.io.tells = tells;
    ASSERT_EQ(send(10), 0);
    (void)a.pump.run(now);
    ASSERT_TRUE(a.pump.waits_for_room());
    const std::uint64_t again = now + kMillisecond;
    EXPECT_EQ(a.pump.next_timeout(), tells ? std::max(again, a.endpoint.next_timeout()) : again);
    EXPECT_GT(a.endpoint.next_timeout(), again);
  }
}

TEST_F(PumpTest, TellsTheEndpointWhatTheDeviceDoesNotTake) {
  connect();
  for (int k = 0; k < 2000 && a.sink.connection->mtu().current() == kBasePacket; ++k) {
    exchange();
    now += kMillisecond;
  }
  const std::size_t largest = a.sink.connection->mtu().current();
  ASSERT_GT(largest, kBasePacket);
  ASSERT_EQ(send(largest), 0);
  a.io.answer = PacketIo::Sent::kTooBig;
  EXPECT_TRUE(a.pump.send(now));
  EXPECT_FALSE(a.pump.waits_for_room()) << "it is dropped, as by a path that does not take it";
  EXPECT_LT(a.sink.connection->mtu().current(), largest);
}

TEST_F(PumpTest, SendsSixteenTrainsAtATimeAndNoMore) {
  for (std::uint16_t port = 2000; port < 2020; ++port) {
    ASSERT_NE(a.endpoint.connect(address(port), {}, now), nullptr);
  }
  EXPECT_TRUE(a.pump.send(now));
  EXPECT_EQ(a.io.offered, 16);
  EXPECT_TRUE(a.pump.has_more());
  EXPECT_EQ(a.pump.next_timeout(), 0u) << "nothing tells a thread that sleeps of the other four";
  EXPECT_TRUE(a.pump.send(now));
  EXPECT_EQ(a.io.offered, 20);
  EXPECT_FALSE(a.pump.has_more());
  EXPECT_FALSE(a.pump.send(now));
}

TEST_F(PumpTest, ALookThatFindsSomethingSendsNothingAFewTimes) {
  connect();
  const auto arrive = [&] {
    ASSERT_EQ(send(10), 0);
    EXPECT_TRUE(a.pump.send(now));
    carry(a, b);
  };
  const std::vector<std::byte> answer = pattern(5, 9);
  ASSERT_EQ(b.endpoint.send(*b.sink.connection, 0, {{}, answer}), 0);
  for (int k = 0; k < 3; ++k) {
    arrive();
    EXPECT_TRUE(b.pump.look(now));
    EXPECT_EQ(b.io.offered, 0) << k;
  }
  arrive();
  EXPECT_TRUE(b.pump.look(now));
  const int offered = b.io.offered;
  EXPECT_GT(offered, 0);
  ASSERT_EQ(b.endpoint.send(*b.sink.connection, 0, {{}, answer}), 0);
  arrive();
  EXPECT_TRUE(b.pump.look(now));
  EXPECT_EQ(b.io.offered, offered) << "the count begins anew";
  EXPECT_TRUE(b.pump.look(now)) << "it finds nothing and sends at once";
  EXPECT_GT(b.io.offered, offered);
  EXPECT_FALSE(b.pump.look(now));
}

TEST_F(PumpTest, HandsRefusalsOnButNoEndlessRowOfThem) {
  ASSERT_NE(a.endpoint.connect(b.at, {}, now), nullptr);
  (void)a.pump.run(now);
  a.io.asked_for_refusals = 0;
  for (int k = 0; k < 50; ++k) a.io.refusals.push_back(b.at);
  (void)a.pump.run(now);
  EXPECT_EQ(a.io.asked_for_refusals, 16);
  EXPECT_EQ(a.io.refusals.size(), 34u);
  for (int k = 0; k < 20; ++k) (void)a.pump.run(now += kRefusedWait);
  EXPECT_EQ(a.sink.down, ECONNREFUSED);
}

TEST_F(PumpTest, RunsTimersThatAreDueAndNamesPeersThatDoNotAnswer) {
  connect();
  ASSERT_EQ(send(10), 0);
  EXPECT_TRUE(a.pump.run(now));
  for (int k = 0; k < 10; ++k) {
    (void)a.pump.run(now);
    now += kSecond / 2;
  }
  ASSERT_EQ(a.io.doubted.size(), 1u);
  EXPECT_EQ(a.io.doubted[0], b.at);
}

TEST_F(PumpTest, ThatHasNoSourcesOfItsOwnSleepsOnItsDescriptor) {
  pollfd sources[PacketIo::kMostSources] = {};
  ASSERT_EQ(a.io.sources(sources), 1u);
  EXPECT_EQ(sources[0].fd, 55);
  EXPECT_EQ(sources[0].events, POLLIN);
  a.io.changed();  // nobody waits for it
  int told = 0;
  a.io.on_change([&] { ++told; });
  a.io.changed();
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace clan::udp

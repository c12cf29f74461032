// Peers that hold to no rule: they have the connection id and make right checks, and send what they
// like.
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <vector>

#include "link/udp/transport/endpoint.h"
#include "udp/allocations.h"
#include "udp/simulation.h"

namespace clan::test {
namespace {

using udp::FrameType;
using udp::kMillisecond;
using udp::kSecond;

constexpr std::uint64_t kClientId = 77;

/// Notes the calls that it gets, and those after the end.
struct Notes final : udp::EndpointSink, udp::MessageSink {
  std::uint64_t messages = 0, fragments = 0, after_the_end = 0, downs = 0;
  int err = -1;
  bool ended = false;
  udp::Connection* established = nullptr;
  std::function<void(udp::Connection&)> at_down;

  int on_request(const udp::SocketAddress&, std::span<const std::byte>, std::span<std::byte>,
                 std::size_t*) override {
    return 0;
  }
  void on_established(udp::Connection& c, std::span<const std::byte>) override {
    established = &c;
    c.user = this;
    ended = false;
  }
  bool on_fragment(std::uint8_t, std::span<const std::byte>, std::uint32_t, std::uint32_t offset,
                   std::span<const std::byte>) override {
    if (ended) ++after_the_end;
    ++fragments;
    return offset % 2 == 0;
  }
  void on_message(std::uint8_t, std::span<const std::byte>, std::uint32_t,
                  std::span<const std::byte>) override {
    if (ended) ++after_the_end;
    ++messages;
  }
  void on_sent(std::uint8_t, std::uint64_t) override {
    if (ended) ++after_the_end;
  }
  void on_down(udp::Connection& c, int e) override {
    if (at_down) at_down(c);
    ended = true;
    ++downs;
    err = e;
  }
};

using Frames = std::function<void(udp::Writer&)>;

template <typename... Numbers>
Frames frame(FrameType type, Numbers... numbers) {
  return [=](udp::Writer& w) {
    w.number(static_cast<std::uint8_t>(type));
    (w.number(numbers), ...);
  };
}
Frames ping() { return frame(FrameType::kPing); }
Frames credit() { return frame(FrameType::kCredit, std::uint8_t{0}, std::uint64_t{1} << 20); }
Frames close_frame(std::uint32_t err) { return frame(FrameType::kClose, err); }
Frames malformed() { return frame(static_cast<FrameType>(99)); }
/// `bytes` of a message of `total` that begins at `position`; total 0: a whole message.
Frames message(std::uint8_t channel, std::uint64_t position, std::uint16_t bytes,
               std::uint32_t total = 0, std::uint32_t offset = 0) {
  return [=](udp::Writer& w) {
    w.number(static_cast<std::uint8_t>(total == 0 ? FrameType::kData : FrameType::kFragment));
    w.number(channel);
    w.number(bytes);
    w.number(std::uint8_t{0});
    w.number(position);
    if (total != 0) {
      w.number(total);
      w.number(offset);
    }
    w.zeros(bytes);
  };
}
Frames acknowledge(const udp::ReceivedNumbers& received) {
  return [&](udp::Writer& w) { (void)received.write_ack(w, 0, 1000); };
}
Frames both(const Frames& a, const Frames& b) {
  return [=](udp::Writer& w) {
    a(w);
    b(w);
  };
}

/// One endpoint, and strangers that write their packets by hand.
class HostilePeer : public testing::Test {
 protected:
  void begin(const udp::Options& options = {}) {
    endpoint_ = std::make_unique<udp::Endpoint>(
        options, notes_, [this] { return fixed_ != 0 ? fixed_ : random_.next() | 1; }, nullptr);
  }

  void give(const udp::SocketAddress& from, std::span<std::byte> packet) {
    udp::write_check(packet);
    endpoint_->receive(from, packet, now_);
  }
  /// Every packet that leaves now.
  template <typename F>
  void drain(F&& f) {
    std::vector<std::byte> out(udp::Endpoint::kTrainBytes);
    for (;;) {
      const udp::Train t = endpoint_->transmit(out, now_);
      if (t.bytes == 0) return;
      for (std::size_t at = 0; at < t.bytes; at += t.segment) {
        f(t.to, std::span<const std::byte>(out).subspan(at, std::min(t.segment, t.bytes - at)));
      }
    }
  }
  void drain() {
    drain([](const udp::SocketAddress&, std::span<const std::byte>) {});
  }

  /// A client that connects; the id it has to send to.
  std::uint64_t connect(const udp::SocketAddress& from, std::uint64_t id = kClientId) {
    udp::Handshake h;
    h.type = udp::PacketType::kHello;
    h.id = id;
    h.parameters.packet_window = 1000;
    h.parameters.largest_packet = udp::kBasePacket;
    for (std::uint64_t& c : h.parameters.credit) c = 1 << 20;
    std::vector<std::byte> packet(udp::kBasePacket), out(udp::Endpoint::kTrainBytes);
    for (int round = 0; round < 2; ++round) {
      udp::write_handshake(packet, h);
      give(from, packet);
      const udp::Train t = endpoint_->transmit(out, now_);
      udp::Handshake answer;
      if (!udp::read_handshake(std::span(out).first(t.bytes), &answer)) return 0;
      if (answer.type == udp::PacketType::kAccept) return answer.id;
      h.cookie = answer.cookie;
    }
    return 0;
  }
  void data(const udp::SocketAddress& from, std::uint64_t id, std::uint64_t number,
            const Frames& frames) {
    std::vector<std::byte> packet(udp::kBasePacket);
    udp::Writer w(packet);
    udp::write_data_header(w, udp::Mode::kOff, id, number);
    frames(w);
    give(from, std::span(packet).first(w.size()));
  }
  /// Timers and packets until `end`; false when the clock stays where it is.
  bool run_until(std::uint64_t end) {
    int still = 0;
    for (;;) {
      drain();
      const std::uint64_t next = endpoint_->next_timeout();
      if (next > end) break;
      still = next <= now_ ? still + 1 : 0;
      if (still > 100) return false;
      now_ = std::max(now_, next);
      endpoint_->on_timeout(now_);
    }
    now_ = std::max(now_, end);
    return true;
  }

  Random random_{11};
  std::uint64_t fixed_ = 0;  ///< not 0: what the endpoint draws
  std::uint64_t now_ = 1;
  Notes notes_;
  std::unique_ptr<udp::Endpoint> endpoint_;
  const udp::SocketAddress here_ = Network::address_of(9), there_ = Network::address_of(10);
};

TEST_F(HostilePeer, ThatUsesTheLastNumberOfAllStopsNoOthersTimers) {
  begin();
  const std::uint64_t bad = connect(here_), good = connect(there_, kClientId + 1);
  data(there_, good, 1, ping());
  drain();
  now_ += kMillisecond;
  data(here_, bad, ~std::uint64_t{0}, credit());
  now_ += 1000;
  data(there_, good, 2, credit());
  bool acknowledged = false;
  for (int i = 0; i < 100 && !acknowledged; ++i) {
    now_ = std::max(now_, endpoint_->next_timeout());
    endpoint_->on_timeout(now_);
    drain([&](const udp::SocketAddress& to, std::span<const std::byte> p) {
      acknowledged |= to == there_ && p.size() > udp::kDataHeader &&
                      p[udp::kDataHeader] == static_cast<std::byte>(FrameType::kAck);
    });
  }
  EXPECT_TRUE(acknowledged);
  data(here_, bad, std::uint64_t{1} << 62, credit());
  EXPECT_EQ(endpoint_->counters().malformed, 2u);
  EXPECT_TRUE(run_until(now_ + kSecond));
}

TEST_F(HostilePeer, ThatSendsOnAfterCloseIsNotHeard) {
  begin();
  const std::uint64_t id = connect(here_);
  data(here_, id, 1, both(close_frame(0), message(0, 0, 100, 1000)));
  EXPECT_EQ(notes_.downs, 1u);
  EXPECT_EQ(notes_.err, 0);
  data(here_, id, 2, message(0, 0, 100, 1000));
  data(here_, id, 3, message(1, 0, 100));
  EXPECT_EQ(notes_.fragments + notes_.messages, 0u);
  EXPECT_EQ(notes_.after_the_end, 0u);
}

TEST_F(HostilePeer, ThatBrokeTheRulesIsNotHeardAgain) {
  begin();
  const std::uint64_t id = connect(here_);
  data(here_, id, 1, malformed());
  EXPECT_EQ(notes_.err, EPROTO);
  data(here_, id, 2, message(0, 0, 100, 1000));
  data(here_, id, 3, message(1, 0, 100));
  EXPECT_EQ(notes_.fragments + notes_.messages, 0u);
  EXPECT_EQ(notes_.after_the_end, 0u);
}

TEST_F(HostilePeer, ThatBreaksTheRulesAgainAndAgainDoesNotKeepTheConnection) {
  begin();
  const std::uint64_t id = connect(here_);
  for (std::uint64_t number = 1; number <= 2000; ++number) {
    data(here_, id, number, malformed());
    run_until(now_ + kMillisecond);
  }
  EXPECT_EQ(notes_.downs, 1u);
  EXPECT_EQ(endpoint_->connections(), 0u);
}

TEST_F(HostilePeer, ThatKnowsOneRandomNumberDoesNotKnowTheChallenge) {
  begin();
  const std::uint64_t id = connect(here_);
  data(here_, id, 1, ping());
  drain();
  fixed_ = 0x1234'5678'9abc'def1;  // drawn only when the question is asked
  data(there_, id, 2, ping());
  std::uint64_t challenge = 0;
  drain([&](const udp::SocketAddress& to, std::span<const std::byte> p) {
    if (!(to == there_) || p.size() < udp::kDataHeader + 9) return;
    udp::Reader in(p.subspan(udp::kDataHeader));
    if (in.number<std::uint8_t>() == static_cast<std::uint8_t>(FrameType::kChallenge)) {
      challenge = in.number<std::uint64_t>();
    }
  });
  EXPECT_EQ(challenge, fixed_);
}

TEST_F(HostilePeer, ThatSendsFromAnAddressWhereNobodyIsKeepsThePeerFromMovingOnlyForAWhile) {
  begin();
  const std::uint64_t id = connect(here_);
  data(here_, id, 1, ping());
  data(there_, id, 2, ping());
  ASSERT_TRUE(run_until(now_ + 5 * kSecond));
  const auto next = Network::address_of(11);
  data(next, id, 3, ping());
  bool asked = false;
  drain([&](const udp::SocketAddress& to, std::span<const std::byte>) { asked |= to == next; });
  EXPECT_TRUE(asked);
}

TEST_F(HostilePeer, ThatSendsButNeverAcknowledgesIsDead) {
  begin();
  const std::uint64_t id = connect(here_);
  data(here_, id, 1, ping());
  std::byte payload[100] = {};
  ASSERT_EQ(endpoint_->send(*notes_.established, 0, {{}, payload}), 0);
  const std::uint64_t end = now_ + 16 * kSecond;
  for (std::uint64_t number = 2; notes_.downs == 0 && now_ < end; ++number) {
    data(here_, id, number, ping());
    ASSERT_TRUE(run_until(now_ + 100 * kMillisecond));
  }
  EXPECT_EQ(notes_.downs, 1u);
  EXPECT_EQ(notes_.err, ETIMEDOUT);
}

// It acknowledges and asks, and takes nothing: neither the thread that waits for room nor the
// messages of a connection that we have closed may wait for ever.
TEST_F(HostilePeer, ThatAcknowledgesAndGivesNoCreditIsDead) {
  for (const bool closed : {false, true}) {
    notes_ = {};
    begin();
    const std::uint64_t id = connect(here_);
    data(here_, id, 1, ping());
    std::vector<std::byte> payload(1000);
    for (int i = 0; i < 2000; ++i) {  // more than the 1 MB that it takes
      ASSERT_EQ(endpoint_->send(*notes_.established, 0, {{}, payload}), 0);
    }
    if (closed) endpoint_->close(*notes_.established, 0, now_);
    const std::uint64_t end = now_ + 16 * kSecond;
    udp::ReceivedNumbers got;
    for (std::uint64_t number = 2; notes_.downs == 0 && now_ < end; ++number) {
      drain([&](const udp::SocketAddress&, std::span<const std::byte> p) {
        got.add(udp::Reader(p.subspan(16)).number<std::uint64_t>());
      });
      data(here_, id, number, both(ping(), acknowledge(got)));
      now_ += kMillisecond;
      endpoint_->on_timeout(now_);
    }
    EXPECT_EQ(notes_.downs, 1u);
    EXPECT_EQ(notes_.err, ETIMEDOUT);
    EXPECT_TRUE(run_until(now_ + kSecond));
    EXPECT_EQ(endpoint_->connections(), 0u);
  }
}

// It would have more of a path than those that wait until packets have come.
TEST_F(HostilePeer, ThatAcknowledgesWhatHasNotComeIsEnded) {
  for (const bool honest : {true, false}) {
    notes_ = {};
    begin();
    const std::uint64_t id = connect(here_);
    data(here_, id, 1, frame(FrameType::kCredit, std::uint8_t{0}, std::uint64_t{1} << 40));
    const std::vector<std::byte> payload(100);
    udp::ReceivedNumbers got;
    std::uint64_t packets = 0, number = 1;
    while (notes_.downs == 0 && packets < 4 * udp::OptimisticAckGuard::kEvery) {
      ASSERT_EQ(endpoint_->send(*notes_.established, 0, {{}, payload}), 0);
      drain([&](const udp::SocketAddress&, std::span<const std::byte> p) {
        const auto came = udp::Reader(p.subspan(16)).number<std::uint64_t>();
        if (!honest && came == got.largest() + 2) got.add(came - 1);
        got.add(came);
        ++packets;
      });
      data(here_, id, ++number, acknowledge(got));
      now_ += kMillisecond / 10;
      endpoint_->on_timeout(now_);
    }
    EXPECT_EQ(notes_.downs, honest ? 0u : 1u);
    EXPECT_EQ(notes_.err, honest ? -1 : EPROTO);
    if (honest) {
      EXPECT_GE(got.largest(), packets + 3) << "numbers that were not sent";
      EXPECT_LE(got.largest(), packets + 20);
    } else {
      EXPECT_LE(packets, udp::OptimisticAckGuard::kFirst);
    }
  }
}

TEST_F(HostilePeer, ThatMakesUsAcknowledgeWithoutEndFillsNoMemory) {
  begin();
  const std::uint64_t id = connect(here_);
  for (std::uint64_t number = 1; notes_.downs == 0 && number < 200'000; ++number) {
    data(here_, id, number, ping());
    drain();
    now_ += 10'000;
  }
  EXPECT_EQ(notes_.downs, 1u);
  EXPECT_EQ(notes_.err, ETIMEDOUT);
  EXPECT_LT(now_, 5 * kSecond) << "by the bound of the log, not by the time";
}

TEST_F(HostilePeer, ThatRefusesLeavesNothingBehindWhenTheLinkClosesInOnDown) {
  begin();
  std::size_t left = 0;
  notes_.at_down = [&](udp::Connection& c) {
    endpoint_->close(c, ECANCELED, now_);
    left = endpoint_->connections();
  };
  udp::Connection* c = endpoint_->connect(here_, {}, now_);
  udp::Handshake h;
  h.type = udp::PacketType::kRefuse;
  h.to = c->id();
  h.err = EACCES;
  std::vector<std::byte> packet(udp::kRefuseBytes);
  ASSERT_EQ(udp::write_handshake(packet, h), packet.size());
  give(here_, packet);
  EXPECT_EQ(notes_.downs, 1u);
  EXPECT_EQ(notes_.err, EACCES);
  EXPECT_EQ(left, 1u) << "the connection is in use while the link is told";
  EXPECT_EQ(endpoint_->connections(), 0u);
}

TEST_F(HostilePeer, ThatIsSilentTakesNoOtherConnectionWithIt) {
  begin();
  udp::Connection* all[3];
  for (udp::Connection*& c : all) c = endpoint_->connect(here_, {}, now_);
  // Each that ends closes the others: all are due at the same time.
  std::vector<udp::Connection*> ended;
  std::size_t least = 3;
  notes_.at_down = [&](udp::Connection& c) {
    ended.push_back(&c);
    for (udp::Connection* other : all) {
      if (std::find(ended.begin(), ended.end(), other) == ended.end())
        endpoint_->close(*other, ECANCELED, now_);
    }
    least = std::min(least, endpoint_->connections());
  };
  now_ += 20 * kSecond;
  endpoint_->on_timeout(now_);
  EXPECT_EQ(notes_.downs, 3u);
  EXPECT_EQ(least, 3u);
  EXPECT_EQ(endpoint_->connections(), 0u);
}

TEST_F(HostilePeer, ThatFloodsWithHelloStarvesNoConnection) {
  begin();
  const std::uint64_t id = connect(here_);
  data(here_, id, 1, ping());
  drain();
  std::byte payload[100] = {};
  ASSERT_EQ(endpoint_->send(*notes_.established, 0, {{}, payload}), 0);
  udp::Handshake h;
  h.type = udp::PacketType::kHello;
  std::vector<std::byte> packet(udp::kBasePacket), out(udp::Endpoint::kTrainBytes);
  bool sent = false;
  int answered = 0;
  for (std::uint64_t i = 0; i < 10; ++i) {
    for (int k = 0; k < 2; ++k) {
      h.id = 1000 + 2 * i + static_cast<std::uint64_t>(k);
      udp::write_handshake(packet, h);
      give(there_, packet);
    }
    const udp::Train t = endpoint_->transmit(out, now_);
    sent |= t.to == here_;
    answered += t.to == there_;
  }
  EXPECT_TRUE(sent);
  EXPECT_GE(answered, 5);
}

// Right checks, right id, everything else by chance. Nothing is reported after the end, no timer
// spins, and what is kept stays within what the peer may send.
TEST_F(HostilePeer, ThatSendsAnythingHarmsOnlyItself) {
  int ended = 0;
  std::uint64_t told = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    Random r(seed);
    notes_ = {};
    udp::Options options;
    for (std::uint64_t& c : options.credit) c = 64 * 1024;
    begin(options);
    std::int64_t memory = 0;  // of the endpoint, but for what it had before
    const Charge charge(&memory);
    const std::uint64_t id = connect(here_);
    ASSERT_NE(id, 0u);
    std::uint64_t number = 0, position[udp::kChannels] = {};
    auto some_frame = [&]() -> Frames {
      const auto channel = static_cast<std::uint8_t>(r.below(udp::kChannels));
      const std::uint64_t at = position[channel];
      switch (r.below(40)) {
        case 0: return close_frame(static_cast<std::uint32_t>(r.below(2) * ECANCELED));
        case 1: return r.below(4) == 0 ? malformed() : ping();
        case 2: return frame(FrameType::kCredit, channel, r.next() >> r.below(64));
        case 3: return frame(FrameType::kChallenge, r.next());
        case 4: return frame(FrameType::kResponse, r.next());
        case 5:
        case 6:
        case 7: {  // an ACK of some of what may have been sent
          const std::uint64_t last = 1 + r.below(20);
          return frame(FrameType::kAck, std::uint8_t{0}, std::uint16_t{0},
                       static_cast<std::uint32_t>(r.below(3)), last,
                       static_cast<std::uint32_t>(r.below(last)));
        }
        case 8: return message(channel, at + r.below(3) * 32, 10);  // may overlap
        case 9:
          return message(channel, at, 100, 100 + static_cast<std::uint32_t>(r.below(300'000)), 0);
        case 10:
        case 11:
          return message(channel, at, 100, 1000, static_cast<std::uint32_t>(r.below(10) * 100));
        default: break;
      }
      // A message, often empty; the next often comes first.
      const auto bytes = static_cast<std::uint16_t>(r.below(2) * r.below(200));
      if (r.below(2) == 0) {
        position[channel] += 2 * 64 + bytes;
        return both(message(channel, at + 64, bytes), message(channel, at, 0));
      }
      position[channel] += 64 + bytes;
      return message(channel, at, bytes);
    };
    for (int i = 0; i < 200; ++i) {
      Frames frames = some_frame();
      for (std::uint64_t k = r.below(3); k > 0; --k) frames = both(frames, some_frame());
      const std::uint64_t odd[] = {0,
                                   1,
                                   number,
                                   std::uint64_t{1} << 32,
                                   (std::uint64_t{1} << 62) - 1,
                                   std::uint64_t{1} << 62,
                                   ~std::uint64_t{0} - 1,
                                   ~std::uint64_t{0}};
      const std::uint64_t n =
          r.below(20) == 0 ? odd[r.below(8)] : (number += 1 + (r.below(5) == 0 ? r.below(4) : 0));
      data(r.below(20) == 0 ? there_ : here_, id, n, frames);
      if (notes_.established != nullptr && notes_.downs == 0 && r.below(5) == 0) {
        std::byte payload[3000] = {};
        (void)endpoint_->send(*notes_.established, static_cast<std::uint8_t>(r.below(4)),
                              {{}, std::span(payload).first(r.below(3000))});
      }
      if (r.below(2) == 0) {
        ASSERT_TRUE(run_until(now_ + r.below(20) * kMillisecond)) << "a timer spins";
      }
      ASSERT_EQ(notes_.after_the_end, 0u);
      ASSERT_LE(notes_.downs, 1u);
      ASSERT_LT(memory, 4 << 20);
    }
    told += notes_.messages;
    ASSERT_TRUE(run_until(now_ + 60 * kSecond)) << "a timer spins";
    EXPECT_EQ(endpoint_->connections(), 0u) << "nobody has answered for a minute";
    ended += notes_.downs == 1;
  }
  EXPECT_GT(ended, 390);
  EXPECT_GT(told, 400u) << "the frames are mostly right";
}

TEST(ReceiveChannel, KeepsNoLargeBufferOfAMessageThatHasBeenReleased) {
  struct Keeper final : udp::MessageSink {
    std::size_t bytes = 0;
    bool on_fragment(std::uint8_t, std::span<const std::byte>, std::uint32_t, std::uint32_t,
                     std::span<const std::byte>) override {
      return false;
    }
    void on_message(std::uint8_t, std::span<const std::byte>, std::uint32_t,
                    std::span<const std::byte> payload) override {
      bytes += payload.size();
    }
    void on_sent(std::uint8_t, std::uint64_t) override {}
  } sink;
  std::vector<std::byte> bytes(50'000);
  std::int64_t kept = 0;
  const Charge charge(&kept);
  udp::ReceiveChannel channel(0, 8 << 20);
  auto give = [&](std::uint64_t i) {
    udp::Frame f;
    f.type = FrameType::kFragment;
    f.position = i * 50'064;
    f.total = 50'000;
    f.payload = bytes;
    ASSERT_EQ(channel.receive(f, sink), udp::ReceiveChannel::Outcome::kTaken);
  };
  for (std::uint64_t i = 50; i > 0; --i) give(i - 1);  // the first comes last
  EXPECT_EQ(sink.bytes, 50u * 50'000);
  EXPECT_LT(kept, 50'000);
}

}  // namespace
}  // namespace clan::test

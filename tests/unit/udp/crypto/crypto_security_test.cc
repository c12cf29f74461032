// The cryptography of the transport by OpenSSL, as the library that is loaded for it. Without
// OpenSSL's headers that is not built, and there is nothing to test.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "link/udp/wire/security.h"
#include "support/pattern.h"
#include "support/streams.h"
#include "udp/key_files.h"
#include "udp/simulation.h"

#ifdef CLAN_CRYPTO_LIBRARY
namespace clan::test {
namespace {

using udp::kSecond;
using udp::Mode;

std::unique_ptr<udp::Security> load(Mode mode, const std::string& key) {
  KeyFiles files;
  return must(udp::load_security(mode, files.make(key), CLAN_CRYPTO_LIBRARY));
}

/// Both ends of a key exchange.
struct Pair {
  std::unique_ptr<udp::Session> client, server;
};
Pair agree(udp::Security& a, udp::Security& b, std::string hello = "hello",
           std::string accept = "accept") {
  auto ours = a.make_share(), theirs = b.make_share();
  const auto h = std::as_bytes(std::span(hello)), r = std::as_bytes(std::span(accept));
  return {a.agree(*ours, theirs->bytes(), true, h, r),
          b.agree(*theirs, ours->bytes(), false, h, r)};
}

class SecurityTest : public testing::TestWithParam<Mode> {
 protected:
  using Packet = std::vector<std::byte>;
  static constexpr std::size_t kHeader = udp::kDataHeader, kBody = 1000;
  static bool in_clear(const Packet& p) {
    const auto body = pattern(kBody, 2);
    return std::equal(body.begin(), body.end(), p.begin() + kHeader);
  }
  static Packet sealed(udp::Session& session, std::uint64_t number) {
    Packet p = pattern(kHeader, 1);
    const auto body = pattern(kBody, 2);
    p.insert(p.end(), body.begin(), body.end());
    p.resize(p.size() + udp::kTagBytes);
    session.seal(number, p);
    return p;
  }
  static bool opens(udp::Session& session, std::uint64_t number, Packet p) {
    return session.open(number, p) && in_clear(p);
  }
  std::unique_ptr<udp::Security> a_ = load(GetParam(), kKey), b_ = load(GetParam(), kKey);
};

INSTANTIATE_TEST_SUITE_P(Modes, SecurityTest, testing::Values(Mode::kIntegrity, Mode::kEncrypt),
                         [](const auto& p) {
                           return p.param == Mode::kEncrypt ? "Encrypt" : "Integrity";
                         });

TEST_P(SecurityTest, WhatOneEndSealsTheOtherOpens) {
  Pair keys = agree(*a_, *b_);
  EXPECT_EQ(keys.client->accept_mac(), keys.server->accept_mac());
  for (std::uint64_t number : {1, 2, 3, 100, 70'000}) {
    const Packet up = sealed(*keys.client, number), down = sealed(*keys.server, number);
    EXPECT_EQ(in_clear(up), GetParam() == Mode::kIntegrity);
    EXPECT_FALSE(std::equal(up.end() - udp::kTagBytes, up.end(), down.end() - udp::kTagBytes));
    EXPECT_TRUE(opens(*keys.server, number, up));
    EXPECT_TRUE(opens(*keys.client, number, down));
    EXPECT_FALSE(opens(*keys.client, number, up)) << "sent back to its sender";
    EXPECT_FALSE(opens(*keys.server, number + 1, up)) << "under another number";
  }
}

TEST_P(SecurityTest, AnyChangedBitIsNoticed) {
  Pair keys = agree(*a_, *b_);
  const Packet good = sealed(*keys.client, 9);
  for (std::size_t i = 0; i < 8 * good.size(); i += 1 + i % 3) {
    Packet p = good;
    p[i / 8] ^= static_cast<std::byte>(1 << i % 8);
    EXPECT_FALSE(opens(*keys.server, 9, p)) << "bit " << i;
  }
  EXPECT_TRUE(opens(*keys.server, 9, good));
}

TEST_P(SecurityTest, EveryHandshakeHasItsOwnKeys) {
  Pair first = agree(*a_, *b_), second = agree(*a_, *b_);
  EXPECT_FALSE(opens(*second.server, 5, sealed(*first.client, 5)));
}

TEST_P(SecurityTest, AChangedHandshakeHasOtherKeys) {
  auto ours = a_->make_share(), theirs = b_->make_share();
  auto session = [&](const char* hello, const char* accept, bool client) {
    const auto bytes = [](const char* s) { return std::as_bytes(std::span(s, std::strlen(s))); };
    return client ? a_->agree(*ours, theirs->bytes(), true, bytes(hello), bytes(accept))
                  : b_->agree(*theirs, ours->bytes(), false, bytes(hello), bytes(accept));
  };
  auto client = session("hello", "accept", true);
  EXPECT_EQ(session("hello", "accept", false)->accept_mac(), client->accept_mac());
  EXPECT_NE(session("hellp", "accept", false)->accept_mac(), client->accept_mac());
  EXPECT_NE(session("hello", "accepu", false)->accept_mac(), client->accept_mac());
}

TEST_P(SecurityTest, AnotherPreSharedKeyHasOtherMacsAndKeys) {
  auto stranger = load(GetParam(), kKey + "x");
  const auto bytes = pattern(100, 3);
  EXPECT_EQ(a_->mac(bytes), b_->mac(bytes));
  EXPECT_NE(a_->mac(bytes), stranger->mac(bytes));
  Pair keys = agree(*a_, *stranger);
  EXPECT_NE(keys.client->accept_mac(), keys.server->accept_mac());
  EXPECT_FALSE(opens(*keys.server, 5, sealed(*keys.client, 5)));
}

// Computed elsewhere by docs/wire.md, Security: other implementations come to the same.
TEST_P(SecurityTest, TheMacIsThatOfTheDocument) {
  constexpr std::string_view kPacket = "some packet";
  constexpr std::uint8_t kMac[] = {0x29, 0x51, 0xdb, 0xd3, 0x55, 0x29, 0xf8, 0xdc,
                                   0x19, 0x04, 0x16, 0x80, 0x15, 0xff, 0x3f, 0x04};
  const udp::Tag mac = a_->mac(std::as_bytes(std::span(kPacket)));
  EXPECT_EQ(std::memcmp(mac.data(), kMac, sizeof kMac), 0);
}

TEST_P(SecurityTest, AShareThatLeavesNothingSecretIsRefused) {
  auto ours = a_->make_share();
  const std::vector<std::byte> zeros(udp::kShareBytes), few(udp::kShareBytes - 1);
  EXPECT_EQ(a_->agree(*ours, zeros, true, {}, {}), nullptr);
  EXPECT_EQ(a_->agree(*ours, few, true, {}, {}), nullptr);
}

TEST_P(SecurityTest, KeysRotateAndAPacketThatIsALittleLateStillOpens) {
  constexpr std::uint64_t kPerKey = std::uint64_t{1} << 24;
  Pair keys = agree(*a_, *b_);
  const Packet late = sealed(*keys.client, kPerKey - 1);
  EXPECT_TRUE(opens(*keys.server, kPerKey, sealed(*keys.client, kPerKey)));
  EXPECT_TRUE(opens(*keys.server, kPerKey - 1, late));
  for (std::uint64_t key = 2; key < 6; ++key) {
    EXPECT_TRUE(opens(*keys.server, key * kPerKey + 7, sealed(*keys.client, key * kPerKey + 7)));
  }
  EXPECT_FALSE(opens(*keys.server, kPerKey - 1, late)) << "five keys ago";
}

TEST_P(SecurityTest, AKeyFarAheadIsNotDerivedForAStranger) {
  constexpr std::uint64_t kPerKey = std::uint64_t{1} << 24;
  Pair keys = agree(*a_, *b_);
  const Packet far = sealed(*keys.client, 3 * kPerKey);
  EXPECT_FALSE(opens(*keys.server, 3 * kPerKey, far));
  EXPECT_TRUE(opens(*keys.server, 4, sealed(*keys.client, 4)));
}

TEST_P(SecurityTest, CarriesTrafficOverAPathThatLosesDuplicatesAndCorrupts) {
  Network network(11);
  network.add_node({}, a_.get());
  network.add_node({}, b_.get());
  for (auto [from, to] : {std::pair{0, 1}, std::pair{1, 0}}) {
    auto& path = network.path(static_cast<std::size_t>(from), static_cast<std::size_t>(to));
    path.loss_ppm = path.copy_ppm = 20'000;
    path.damage_ppm = 10'000;
  }
  Traffic t;
  t.seed = 3;
  t.messages[0] = 200;
  t.messages[3] = 10;
  t.most_bytes[3] = 100'000;
  t.interval = 50'000;
  Talk& talk = network.node(0).connect(1, t, t);
  EXPECT_TRUE(network.run(60 * kSecond, [&] {
    return talk.established && !network.node(0).busy() && !network.node(1).busy();
  }));
  EXPECT_EQ(network.problem(), "");
  EXPECT_GT(network.node(1).endpoint().counters().wrong_check, 0u);
}

TEST_P(SecurityTest, AClientWithAnotherKeyIsNotAnsweredAndCostsNoState) {
  auto stranger = load(GetParam(), kKey + "x");
  Network network(12);
  network.add_node({}, stranger.get());
  network.add_node({}, b_.get());
  Talk& talk = network.node(0).connect(1, Traffic(), Traffic());
  ASSERT_TRUE(network.run(60 * kSecond, [&] { return talk.down; }));
  EXPECT_EQ(talk.err, ETIMEDOUT);
  EXPECT_EQ(network.node(1).endpoint().connections(), 0u);
  EXPECT_GT(network.node(1).endpoint().counters().wrong_check, 0u);
}

}  // namespace
}  // namespace clan::test
#endif

// The cryptography of the transport, by the library that is loaded for it, and the rules for the
// key's file. Without OpenSSL's headers the library is not built, and what needs it is skipped.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "clan/key_file.h"
#include "link/udp/security_loader.h"
#include "support/pattern.h"
#include "support/streams.h"
#include "udp/simulation.h"

namespace clan::test {
namespace {

using udp::kSecond;
using udp::Mode;

const std::string kKey = "0123456789abcdef0123456789abcdef";

/// A directory with key files, removed at the end.
class KeyFiles {
 public:
  KeyFiles() {
    char name[] = "/tmp/clan-keys-XXXXXX";
    directory_ = ::mkdtemp(name);
  }
  ~KeyFiles() {
    for (const std::string& path : made_) ::unlink(path.c_str());
    ::rmdir(directory_.c_str());
  }
  std::string make(const std::string& content, mode_t mode = 0600) {
    const std::string path = directory_ + "/" + std::to_string(made_.size());
    std::ofstream(path, std::ios::binary) << content;
    ::chmod(path.c_str(), mode);
    made_.push_back(path);
    return path;
  }
  const std::string& directory() const { return directory_; }

 private:
  std::string directory_;
  std::vector<std::string> made_;
};

/// 0 or an errno: why it is not taken.
int fault_of(const std::string& path) {
  clan::KeyFile file;
  const Status taken = file.read(path.c_str());
  return taken ? 0 : taken.error().err;
}

TEST(KeyFile, IsReadWithoutWhiteSpaceAtItsEnd) {
  KeyFiles files;
  clan::KeyFile file;
  ASSERT_TRUE(file.read(files.make(kKey + " \r\n").c_str()).ok());
  EXPECT_EQ(file.key(), kKey);
}

TEST(KeyFile, ThatOthersMayUseIsRefused) {
  KeyFiles files;
  for (mode_t mode : {0640, 0604, 0620, 0610}) {
    EXPECT_EQ(fault_of(files.make(kKey, mode)), EACCES) << mode;
  }
  EXPECT_EQ(fault_of(files.make(kKey, 0400)), 0);
}

TEST(KeyFile, OfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  KeyFiles files;
  const std::string path = files.make(kKey);
  ASSERT_EQ(::chown(path.c_str(), 65'534, 65'534), 0);
  EXPECT_EQ(fault_of(path), EACCES);
}

TEST(KeyFile, ThatIsShortLongMissingOrNoFileIsRefused) {
  KeyFiles files;
  EXPECT_EQ(fault_of(files.make(kKey.substr(1) + "\n\n")), EINVAL);
  EXPECT_EQ(fault_of(files.make(std::string(4097, 'x'))), EINVAL);
  EXPECT_EQ(fault_of(files.directory()), EINVAL);
  EXPECT_EQ(fault_of(files.directory() + "/none"), ENOENT);
  EXPECT_EQ(fault_of(""), EINVAL);
}

TEST(SecurityLibrary, IsNotNeededInModeOff) {
  auto none = udp::load_security(Mode::kOff, "", "/nonexistent.so");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->get(), nullptr);
}

TEST(SecurityLibrary, ThatIsMissingIsOneClearSentence) {
  KeyFiles files;
  auto none =
      udp::load_security(Mode::kEncrypt, files.make(kKey), "/nonexistent/libclan-crypto.so.0");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().err, ELIBACC);
  EXPECT_NE(none.error().message().find("libclan-crypto.so.0 and OpenSSL 3"), std::string::npos);
}

TEST(SecurityLibrary, OfAnotherKindIsRefused) {
  KeyFiles files;
  auto none = udp::load_security(Mode::kEncrypt, files.make(kKey), "libm.so.6");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().err, ELIBBAD);
}

#ifdef CLAN_CRYPTO_LIBRARY

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
  struct Packet {
    std::vector<std::byte> header = pattern(24, 1), body = pattern(1000, 2);
    udp::Tag tag{};
  };
  static Packet sealed(udp::Session& session, std::uint64_t number) {
    Packet p;
    session.seal(number, p.header, p.body, p.tag);
    return p;
  }
  static bool opens(udp::Session& session, std::uint64_t number, Packet p) {
    return session.open(number, p.header, p.body, p.tag) && p.body == pattern(1000, 2);
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
    EXPECT_EQ(up.body == pattern(1000, 2), GetParam() == Mode::kIntegrity);
    EXPECT_NE(up.tag, down.tag);
    EXPECT_TRUE(opens(*keys.server, number, up));
    EXPECT_TRUE(opens(*keys.client, number, down));
    EXPECT_FALSE(opens(*keys.client, number, up)) << "sent back to its sender";
    EXPECT_FALSE(opens(*keys.server, number + 1, up)) << "under another number";
  }
}

TEST_P(SecurityTest, AnyChangedBitIsNoticed) {
  Pair keys = agree(*a_, *b_);
  const Packet good = sealed(*keys.client, 9);
  for (std::size_t i = 0; i < 24; ++i) {
    Packet p = good;
    p.header[i] ^= std::byte{1};
    EXPECT_FALSE(opens(*keys.server, 9, p));
  }
  for (std::size_t i = 0; i < 1000; ++i) {
    Packet p = good;
    p.body[i] ^= std::byte{0x80};
    EXPECT_FALSE(opens(*keys.server, 9, p));
  }
  for (std::size_t i = 0; i < udp::kTagBytes; ++i) {
    Packet p = good;
    p.tag[i] ^= std::byte{4};
    EXPECT_FALSE(opens(*keys.server, 9, p));
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

#endif

}  // namespace
}  // namespace clan::test

// The end of OpenSSL: exit() takes it down while threads of a program may be at a handshake.
#ifdef CLAN_CRYPTO_LIBRARY
#include "link/udp/crypto/openssl_use.h"

#include <gtest/gtest.h>
#include <openssl/crypto.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "link/udp/crypto/aead.h"
#include "link/udp/wire/security.h"
#include "support/pattern.h"
#include "support/streams.h"
#include "udp/key_files.h"

namespace clan::test {
namespace {

/// A host's keys, with itself.
struct Host {
  std::unique_ptr<udp::Security> security = [] {
    KeyFiles files;
    return must(udp::load_security(udp::Mode::kEncrypt, files.make(kKey), CLAN_CRYPTO_LIBRARY));
  }();
  std::vector<std::byte> words = pattern(100, 1);

  std::unique_ptr<udp::Session> agree(udp::KeyShare& ours, udp::KeyShare& theirs, bool client) {
    return security->agree(ours, theirs.bytes(), client, words, words);
  }
};

bool goes_through(udp::Session& from, udp::Session& to, std::uint64_t number) {
  const std::vector<std::byte> before = pattern(1040, 1);
  std::vector<std::byte> packet = before;
  from.seal(number, packet);
  return to.open(number, packet) &&
         std::equal(before.begin(), before.end() - udp::kTagBytes, packet.begin());
}

bool turns(udp::Aead& aead) {
  std::vector<std::byte> header = pattern(24, 1), body = pattern(1000, 2);
  udp::Aead::AeadTag tag{};
  return aead.encrypt({}, header, body, &tag) && body != pattern(1000, 2) &&
         aead.decrypt({}, header, body, tag) && body == pattern(1000, 2);
}

// Each in a process of its own: OpenSSL does not come back.

[[noreturn]] void take_down_between_calls() {
  Host host;
  auto ours = host.security->make_share(), theirs = host.security->make_share();
  auto client = host.agree(*ours, *theirs, true), server = host.agree(*theirs, *ours, false);
  const std::vector<std::byte> key = pattern(udp::kAeadKeyBytes, 3);
  auto aead = udp::make_openssl_aead(udp::AeadKey(key));
  bool good = goes_through(*client, *server, 1) && turns(*aead);
  const udp::Tag before = host.security->mac(host.words);
  good = good && host.security->mac(host.words) == before;
  ::OPENSSL_cleanup();
  good = good && goes_through(*client, *server, 2) && turns(*aead);
  good = good && host.security->make_share() == nullptr;
  good = good && host.agree(*ours, *theirs, true) == nullptr;
  const udp::Tag after = host.security->mac(host.words);
  good = good && after != before && after != udp::Tag{} && after != host.security->mac(host.words);
  ours.reset();
  client.reset();
  aead.reset();
  std::_Exit(good ? 0 : 1);
}

// `uses(at_work)`: another thread's calls, until they are refused.
template <typename Uses>
[[noreturn]] void take_down_below(Uses&& uses) {
  std::atomic<int> at_work{0};
  std::atomic<bool> is_down{false};
  std::thread other([&] {
    uses(at_work);
    // A thread that ends has OpenSSL free what was the thread's, and OpenSSL does not keep its own
    // end apart from that.
    while (!is_down.load(std::memory_order_relaxed)) std::this_thread::yield();  // relaxed: a flag
  });
  while (at_work.load(std::memory_order_relaxed) < 3)
    std::this_thread::yield();  // relaxed: a count
  ::OPENSSL_cleanup();
  is_down.store(true, std::memory_order_relaxed);  // relaxed: nothing hangs on it
  other.join();
  std::_Exit(0);
}

[[noreturn]] void take_down_below_a_call() {
  Host host;
  take_down_below([&](std::atomic<int>& agreed) {
    while (auto ours = host.security->make_share()) {
      if (host.agree(*ours, *ours, true)) agreed.fetch_add(1, std::memory_order_relaxed);  // count
    }
  });
}

[[noreturn]] void take_down_below_a_free() {
  Host host;
  std::vector<std::unique_ptr<udp::KeyShare>> shares(1000);
  for (auto& share : shares) share = host.security->make_share();
  take_down_below([&](std::atomic<int>& freed) {
    for (auto& share : shares) {
      share.reset();
      freed.fetch_add(1, std::memory_order_relaxed);  // a count
    }
  });
}

TEST(OpenSslUse, OnceOpenSslIsTakenDownSessionsGoOnAndNothingNewBegins) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(take_down_between_calls(), testing::ExitedWithCode(0), "");
}

TEST(OpenSslUse, OpenSslIsNotTakenDownBelowACall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (int i = 0; i < 10; ++i)
    EXPECT_EXIT(take_down_below_a_call(), testing::ExitedWithCode(0), "") << i;
}

TEST(OpenSslUse, OpenSslIsNotTakenDownBelowTheEndOfAKey) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (int i = 0; i < 10; ++i)
    EXPECT_EXIT(take_down_below_a_free(), testing::ExitedWithCode(0), "") << i;
}

}  // namespace
}  // namespace clan::test
#endif

// A peer that shakes hands through the real library and then writes into everything it has mapped.
// Our process never crashes and never reads out of bounds; its connection is reset and counted; the
// bytes of others stay right. (Peers of one user share a lane: it can make or lose hints for the
// others, so the honest loops here look again now and then.)
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "clan/detail/clock.h"
#include "engine/connection/connection.h"
#include "shm/ring.h"
#include "support/streams.h"

namespace clan {
namespace {

using namespace test;
using Mode = WaitOptions::Mode;

constexpr char kMarker[] = "<here is the ring of the victim>";

// In the hostile child: the victim's region, found by what we have sent there.
std::byte* find_region() {
  std::array<SharedRange, 64> ranges;
  const std::size_t n = writable_memfd_mappings("clan-memory", ranges);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t at = 0; at + 8192 <= std::min<std::size_t>(ranges[i].bytes, 1 << 20);
         at += 4096) {
      const std::byte* payload = ranges[i].begin + at + engine::kRegionRing + shm::kRingHeadBytes;
      if (std::memcmp(payload, kMarker, sizeof kMarker) == 0) return ranges[i].begin + at;
    }
  }
  return nullptr;
}

void store(std::byte* where, std::uint64_t word) {
  reinterpret_cast<std::atomic<std::uint64_t>*>(where)->store(word);
}

// A victim with one hostile peer, which runs `attack` on the victim's region at the gate, and an
// honest one.
class Victim {
 public:
  template <typename Attack>
  explicit Victim(Attack attack)
      : name_(unique_name("victim")),
        // Forked first: it has mapped nothing but what the handshake brings.
        hostile_child_(Process::start([&] {
          CHILD_CHECK(listening_.wait());
          auto own = Context::create(with_mode(Mode::kAdaptive, 4096));
          CHILD_OK(own);
          auto stream = Stream::connect(*own, name_, 20'000);
          CHILD_OK(stream);
          CHILD_OK(stream->send(std::as_bytes(std::span(kMarker)), 5000));
          std::byte* region = find_region();
          CHILD_CHECK(region != nullptr);
          ready_.open();
          CHILD_CHECK(attack_.wait());
          attack(region);
          attacked_.open();
          ::pause();
          return 0;
        })),
        context_(must(Context::create(with_mode(Mode::kAdaptive, 4096)))),
        listener_(must(Listener::create(context_, name_))),
        honest_child_(Process::start([&] {
          auto own = Context::create(with_mode(Mode::kAdaptive, 4096));
          CHILD_OK(own);
          auto stream = Stream::connect(*own, listener_.address(), 20'000);
          CHILD_OK(stream);
          std::byte buffer[1000];
          for (;;) {
            auto n = stream->recv(buffer, 60'000);
            if (!n.ok() || *n == 0) return 0;
            CHILD_OK(stream->send({buffer, *n}, 20'000));
          }
        })),
        honest_(must(listener_.accept(20'000))),
        hostile_(must(accept_hostile())) {
    if (!ready_.wait()) std::abort();
    std::byte marker[sizeof kMarker];
    (void)hostile_.recv(marker, 5000);
  }

  void attack() {
    attack_.open();
    ASSERT_TRUE(attacked_.wait());
  }
  void expect_honest_peer_unharmed() {
    const std::uint64_t from = at_;
    const std::uint64_t to = from + 20'000;
    std::thread sender([&] {
      std::uint64_t at = from;
      while (at < to) {
        auto n = honest_.send(pattern(std::min<std::uint64_t>(700, to - at), 3, at), 20);
        if (n.ok()) at += *n;
      }
    });
    std::byte buffer[900];
    const std::uint64_t deadline = deadline_after_ms(20'000);
    while (at_ < to && monotonic_ns() < deadline) {
      auto n = honest_.recv({buffer, std::min<std::uint64_t>(sizeof buffer, to - at_)}, 20);
      if (!n.ok()) {
        ASSERT_EQ(n.error().err, ETIMEDOUT);
        continue;
      }
      ASSERT_TRUE(is_pattern({buffer, *n}, 3, at_)) << "a wrong byte of an honest peer";
      at_ += *n;
    }
    sender.join();
    EXPECT_EQ(at_, to);
  }
  Context& context() { return context_; }
  Stream& hostile() { return hostile_; }
  Process& hostile_child() { return hostile_child_; }
  std::uint64_t counted() { return context_.counters().hostile_peers; }

 private:
  Result<Stream> accept_hostile() {
    listening_.open();
    return listener_.accept(20'000);
  }

  Gate listening_, ready_, attack_, attacked_;
  std::string name_;
  Process hostile_child_;
  Context context_;
  Listener listener_;
  Process honest_child_;
  Stream honest_;
  Stream hostile_;
  std::uint64_t at_ = 0;
};

// The line behind the marker's record, which the victim reads next.
std::byte* next_head(std::byte* region) {
  return region + engine::kRegionRing + shm::lines_for(sizeof kMarker) * 64;
}

class HostileRecord : public testing::TestWithParam<std::pair<const char*, std::uint64_t>> {};

INSTANTIATE_TEST_SUITE_P(
    Words, HostileRecord,
    testing::Values(std::pair{"WithoutTag", std::uint64_t{0x0000000000000010}},
                    std::pair{"WithAWrongTag", ~std::uint64_t{0}},
                    std::pair{"LongerThanTheRing", shm::RingHead::make(0xffffffff, 1, 1).word},
                    std::pair{"LongerThanAQuarterOfTheRing", shm::RingHead::make(1017, 1, 1).word},
                    std::pair{"OfNoBytes", shm::RingHead::make(0, 1, 1).word},
                    std::pair{"OfUnknownType", shm::RingHead::make(8, 77, 1).word},
                    std::pair{"OfAnotherKindOfEndpoint", shm::RingHead::make(8, 16, 1).word}),
    [](const auto& record) { return std::string(record.param.first); });

TEST_P(HostileRecord, ResetsItsConnectionOnceAndNoOther) {
  const std::uint64_t word = GetParam().second;
  Victim victim([word](std::byte* region) { store(next_head(region), word); });
  victim.attack();
  std::byte buffer[64];
  for (int i = 0; i < 3; ++i) EXPECT_ERR(victim.hostile().recv(buffer, 5000), EPROTO);
  EXPECT_ERR(victim.hostile().try_send(text("x")), EPROTO);
  EXPECT_EQ(victim.counted(), 1u);
  EXPECT_EQ(victim.context().counters().connections_reset, 1u);
  victim.expect_honest_peer_unharmed();
  victim.hostile().close();
  (void)victim.hostile_child().kill();
  EXPECT_TRUE(eventually([&] { return victim.context().counters().apertures == 1; }))
      << "its region is given back when it is dead";
}

TEST(HostileSkip, ThatLeadsToItselfDoesNotLoop) {
  Victim victim([](std::byte* region) {
    const std::uint64_t skip = shm::RingHead::make(0, shm::kRingSkip, 1).word;
    store(next_head(region), skip);
    store(region + engine::kRegionRing, skip);
  });
  victim.attack();
  std::byte buffer[64];
  EXPECT_ERR(victim.hostile().recv(buffer, 5000), EPROTO);
  EXPECT_EQ(victim.counted(), 1u);
  victim.expect_honest_peer_unharmed();
}

TEST(HostileCredit, BeyondWhatWasSentResetsTheConnection) {
  for (std::uint64_t credit : {std::uint64_t{1000}, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    Victim victim([credit](std::byte* region) { store(region, credit); });
    victim.attack();
    Result<std::size_t> n = std::size_t{0};
    auto data = pattern(600, 1);
    for (int i = 0; i < 100 && (n.ok() || n.error().err == EAGAIN); ++i)
      n = victim.hostile().try_send(data);
    EXPECT_ERR(n, EPROTO);
    EXPECT_ERR(victim.hostile().send(data, 1000), EPROTO);
    EXPECT_EQ(victim.counted(), 1u);
    victim.expect_honest_peer_unharmed();
  }
}

TEST(HostileWriter, ScribblingOverAllItHasMappedNeverHarmsTheBytesOfOthers) {
  std::uint64_t resets = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    Victim victim([seed](std::byte*) {
      std::array<SharedRange, 64> ranges;
      std::vector<SharedRange> targets;
      const std::size_t n = writable_memfd_mappings("clan-", ranges);
      for (std::size_t i = 0; i < n; ++i) targets.push_back(ranges[i]);
      Random random(seed);
      const std::uint64_t end = monotonic_ns() + 150'000'000;
      while (monotonic_ns() < end) {
        for (int i = 0; i < 200; ++i) {
          const SharedRange& r = targets[random.below(targets.size())];
          const std::size_t near =
              random.below(4) != 0 ? std::min<std::size_t>(r.bytes, 16'384) : r.bytes;
          std::uint64_t word = random.next();
          switch (random.below(5)) {
            case 0: word = 0; break;
            case 1: word = ~std::uint64_t{0}; break;
            case 2:
              word = shm::RingHead::make(static_cast<std::uint32_t>(random.below(2000)),
                                         static_cast<std::uint8_t>(random.below(256)), 1)
                         .word;
              break;
            case 3: word = random.below(300); break;
            default: break;
          }
          store(r.begin + (random.below(near) & ~std::size_t{7}), word);
        }
        if (random.below(2) == 0) ::usleep(static_cast<useconds_t>(random.below(2000)));
      }
    });
    std::atomic<bool> over{false};
    std::thread talker([&] {  // talks with the enemy all the while
      std::byte buffer[2000];
      auto data = pattern(300, 9);
      while (!over) {
        (void)victim.hostile().try_recv(buffer);
        (void)victim.hostile().try_send(data);
        auto front = victim.hostile().peek();
        if (front.ok() && !front->empty()) {
          volatile std::byte last = front->back();
          (void)last;
          victim.hostile().consume(front->size());
        }
        std::this_thread::yield();
      }
    });
    victim.attack();
    victim.expect_honest_peer_unharmed();
    over = true;
    talker.join();
    resets += victim.counted();
    EXPECT_LE(victim.counted(), 1u) << "counted once";
    victim.hostile().close();
    EXPECT_TRUE(eventually([&] {
      (void)victim.hostile_child().kill();
      return victim.context().counters().links == 1;
    }));
    victim.expect_honest_peer_unharmed();
  }
  EXPECT_GT(resets, 0u);
}

TEST(HostileWriter, CannotWriteTheTablesOfItsVictim) {
  const std::string name = unique_name("tables");
  Gate listening;
  auto child = Process::start([&] {
    CHILD_CHECK(listening.wait());
    auto own = Context::create();
    CHILD_OK(own);
    auto stream = Stream::connect(*own, name, 10'000);
    CHILD_OK(stream);
    std::array<SharedRange, 64> tables;
    const std::size_t n = writable_memfd_mappings("clan-nic-tables", tables);
    CHILD_CHECK(n == 1);  // its own
    const auto& header = reinterpret_cast<const shm::NicTables*>(tables[0].begin)->header;
    CHILD_CHECK(header.node == own->node().value);
    return 0;
  });
  auto context = must(Context::create());
  auto listener = must(Listener::create(context, name));
  listening.open();
  EXPECT_TRUE(child.wait(20'000).clean());
}

TEST(HostileWriter, WhoSendsAnEndMarkAndGoesOnIsReadOnlyToTheMark) {
  Victim victim([](std::byte* region) {
    std::byte* head = next_head(region);
    store(head + 64, shm::RingHead::make(8, 1, 1).word);
    store(head, shm::RingHead::make(0, 2, 1).word);  // the end
  });
  victim.attack();
  std::byte buffer[64];
  for (int i = 0; i < 3; ++i) {
    auto n = victim.hostile().recv(buffer, 5000);
    ASSERT_OK(n);
    EXPECT_EQ(*n, 0u);
  }
  victim.expect_honest_peer_unharmed();
}

}  // namespace
}  // namespace clan

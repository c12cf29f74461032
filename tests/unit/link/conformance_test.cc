// One set of engine tests over every kind of link: what a program sees must not depend on how bytes
// travel.
//
// Each test runs over shared memory, over packets in order, and over packets that are delayed and
// reordered. Both contexts are in this process; a_ owns and serves, b_ comes over the link.
#include <clan/aperture.h>
#include <clan/endpoint.h>
#include <clan/event_queue.h>
#include <clan/message.h>
#include <clan/rdma.h>
#include <clan/stream.h>
#include <clan/tripwire.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "clan/detail/clock.h"
#include "engine/connection/connection.h"
#include "support/pattern.h"
#include "support/plain_link.h"
#include "support/streams.h"
#include "support/udp_pair.h"

namespace clan::test {
namespace {

using engine::OobSink;

enum class Wire { kShm, kPlain, kScrambled, kUdp, kUdpLossy };

const char* name_of(Wire wire) {
  switch (wire) {
    case Wire::kShm: return "Shm";
    case Wire::kPlain: return "Plain";
    case Wire::kScrambled: return "Scrambled";
    case Wire::kUdp: return "Udp";
    case Wire::kUdpLossy: return "UdpLossy";
  }
  return "";
}

void PrintTo(Wire wire, std::ostream* out) { *out << name_of(wire); }

std::string wire_name(const testing::TestParamInfo<Wire>& info) { return name_of(info.param); }

template <typename Condition>
bool eventually(Condition&& condition, int timeout_ms = 60'000) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

int err_of(const Status& s) { return s.ok() ? 0 : s.error().err; }
template <typename T>
int err_of(const Result<T>& r) {
  return r.ok() ? 0 : r.error().err;
}

class ConformanceTest : public testing::TestWithParam<Wire> {
 protected:
  void SetUp() override { start({}); }

  // Two fresh contexts and the link between them.
  void start(const ContextOptions& options) {
    udp_.reset();
    b_.reset();
    a_.reset();
    network_.reset();
    a_.emplace(must(Context::create(options)));
    b_.emplace(must(Context::create(options)));
    if (GetParam() == Wire::kShm) {
      ASSERT_TRUE(a_->core()->listen_as_node().ok());
    } else if (GetParam() == Wire::kUdp || GetParam() == Wire::kUdpLossy) {
      Impairment impairment;
      if (GetParam() == Wire::kUdpLossy) {
        impairment = {testing::UnitTest::GetInstance()->random_seed() + 17u, 20, 20, 50};
      }
      udp_ = std::make_unique<UdpPair>(*a_->core(), *b_->core(), impairment);
    } else {
      PlainOptions plain;
      plain.seed = testing::UnitTest::GetInstance()->random_seed() + 17u;
      if (GetParam() == Wire::kScrambled) {
        plain.delay_us = 60;
        plain.reorder_window = 24;
      }
      network_ = std::make_unique<PlainNetwork>(plain);
      network_->join(*a_->core(), *b_->core());
    }
  }

  void TearDown() override {
    if (network_ && HasFailure()) {
      const PlainCounters c = network_->counters();
      std::printf("network: %llu delivered, %llu overtaking, %llu held back, %llu refused\n",
                  static_cast<unsigned long long>(c.delivered),
                  static_cast<unsigned long long>(c.overtaking),
                  static_cast<unsigned long long>(c.held_back),
                  static_cast<unsigned long long>(c.refused));
    }
    if (udp_ && HasFailure()) udp_->print();
    if (network_) {
      EXPECT_EQ(network_->counters().malformed, 0u);
    }
  }

  void pause() {
    if (network_) network_->pause();
    if (udp_) udp_->pause();
  }
  bool packets() const { return GetParam() != Wire::kShm; }
  void settle() {
    if (network_) network_->settle();
    if (udp_) udp_->settle();
  }
  std::shared_ptr<nic::Link> link() {
    return must(b_->core()->link_to_node(a_->node(), ::geteuid(), deadline_after_ms(10'000)));
  }
  /// a_'s end of it.
  std::shared_ptr<nic::Link> link_back() {
    (void)link();
    std::shared_ptr<nic::Link> found;
    EXPECT_TRUE(eventually([&] { return a_->counters().links == 1; }));
    return must(a_->core()->link_to_node(b_->node(), ::geteuid(), deadline_after_ms(10'000)));
  }
  void take_link_down() {
    if (network_) {
      network_->cut();
    } else if (udp_) {
      udp_->cut();
    } else {
      link()->shut_down();
    }
  }

  /// An aperture of a_ on CLAN memory, and b_'s import of it.
  struct Shared {
    Memory memory;
    Aperture aperture;
    RemoteAperture remote;
  };
  Shared share(std::size_t bytes, Rights rights = Rights::kReadWrite) {
    auto memory = must(Memory::allocate(bytes));
    auto aperture = must(Aperture::export_memory(*a_, memory, 0, bytes, rights));
    auto remote = must(RemoteAperture::import(*b_, aperture.cookie(), 10'000));
    return {std::move(memory), std::move(aperture), std::move(remote)};
  }

  std::pair<Stream, Stream> connect() {
    if (!listener_) listener_.emplace(must(Listener::create(*a_, "")));
    auto client = must(Stream::connect(*b_, listener_->address(), 10'000));
    auto server = must(listener_->accept(10'000));
    return {std::move(client), std::move(server)};
  }

  std::unique_ptr<PlainNetwork> network_;  // first: goes last
  std::optional<Context> a_, b_;
  std::unique_ptr<UdpPair> udp_;  // before the contexts that it serves
  std::optional<Listener> listener_;
};

INSTANTIATE_TEST_SUITE_P(Links, ConformanceTest,
                         testing::Values(Wire::kShm, Wire::kPlain, Wire::kScrambled, Wire::kUdp,
                                         Wire::kUdpLossy),
                         wire_name);

// --- apertures
// -------------------------------------------------------------------------------------

TEST_P(ConformanceTest, WhatIsWrittenIsReadBackAndIsInTheOwnersMemory) {
  Shared s = share(40'000);
  std::vector<std::byte> shadow(40'000);
  Random random(5);
  for (int i = 0; i < 300; ++i) {
    const std::size_t n = random.size_up_to(9000);
    const std::size_t at = random.below(shadow.size() - n + 1);
    auto bytes = pattern(n, static_cast<std::uint64_t>(i));
    ASSERT_TRUE(s.remote.write(at, bytes.data(), n).ok());
    std::copy(bytes.begin(), bytes.end(), shadow.begin() + static_cast<std::ptrdiff_t>(at));
    if (i % 16 == 0) {
      std::vector<std::byte> seen(shadow.size());
      ASSERT_TRUE(s.remote.read(0, seen.data(), seen.size()).ok());
      ASSERT_EQ(seen, shadow) << "after write " << i;
    }
  }
  std::byte last;
  ASSERT_TRUE(s.remote.read(0, &last, 1).ok());  // everything before it has arrived
  EXPECT_EQ(std::memcmp(s.memory.data(), shadow.data(), shadow.size()), 0);
}

TEST_P(ConformanceTest, TheCallersOwnMemoryCanBeExported) {
  std::vector<std::byte> region(10'000);
  auto aperture = must(Aperture::export_region(*a_, region, Rights::kReadWrite));
  auto remote = must(RemoteAperture::import(*b_, aperture.cookie(), 10'000));
  auto bytes = pattern(region.size(), 3);
  ASSERT_TRUE(remote.write(0, bytes.data(), bytes.size()).ok());
  std::vector<std::byte> seen(region.size());
  ASSERT_TRUE(remote.read(0, seen.data(), seen.size()).ok());
  EXPECT_EQ(seen, bytes);
  EXPECT_TRUE(aperture.revoke().ok());
  EXPECT_EQ(region, bytes);
}

TEST_P(ConformanceTest, WritesToOnePlaceTakeEffectInTheOrderOfTheProgram) {
  Shared s = share(4096);
  for (std::uint64_t round = 1; round <= 20; ++round) {
    for (std::uint64_t i = 1; i <= 50; ++i) {
      const std::uint64_t value = round * 1000 + i;
      ASSERT_TRUE(s.remote.write(24, &value, sizeof value).ok());
    }
    std::uint64_t seen = 0;
    ASSERT_TRUE(s.remote.read(24, &seen, sizeof seen).ok());
    ASSERT_EQ(seen, round * 1000 + 50);
  }
}

TEST_P(ConformanceTest, AccessOutsideAnApertureIsRefused) {
  Shared s = share(4096);
  std::byte bytes[64] = {};
  EXPECT_EQ(err_of(s.remote.write(4096 - 63, bytes, 64)), ERANGE);
  EXPECT_EQ(err_of(s.remote.read(4097, bytes, 0)), ERANGE);
  EXPECT_EQ(err_of(s.remote.write(~std::uint64_t{0} - 8, bytes, 64)), ERANGE);
  EXPECT_EQ(err_of(s.remote.write(4096 - 64, bytes, 64)), 0);
}

TEST_P(ConformanceTest, RightsAreKept) {
  std::uint64_t value = 7;
  {
    Shared reading = share(4096, Rights::kRead);
    EXPECT_EQ(err_of(reading.remote.write(0, &value, 8)), EACCES);
    EXPECT_EQ(err_of(reading.remote.read(0, &value, 8)), 0);
  }
  Shared writing = share(4096, Rights::kWrite);
  EXPECT_EQ(err_of(writing.remote.read(0, &value, 8)), EACCES);
  EXPECT_EQ(err_of(writing.remote.write(0, &value, 8)), 0);
}

TEST_P(ConformanceTest, AForgedCookieIsRefused) {
  Shared s = share(4096, Rights::kRead);
  RdmaCookie forged = s.aperture.cookie();
  forged.key ^= 1;
  EXPECT_EQ(err_of(RemoteAperture::import(*b_, forged, 10'000)), EACCES);
  forged = s.aperture.cookie();
  forged.length += 4096;
  EXPECT_EQ(err_of(RemoteAperture::import(*b_, forged, 10'000)), EACCES);
  forged = s.aperture.cookie();
  forged.rights = Rights::kReadWrite;
  EXPECT_EQ(err_of(RemoteAperture::import(*b_, forged, 10'000)), EACCES);
  forged = s.aperture.cookie();
  forged.generation += 2;
  EXPECT_EQ(err_of(RemoteAperture::import(*b_, forged, 10'000)), ESTALE);
}

TEST_P(ConformanceTest, ARevokedApertureIsStale) {
  Shared s = share(8192);
  const RdmaCookie cookie = s.aperture.cookie();
  std::uint64_t value = 1;
  ASSERT_TRUE(s.remote.write(0, &value, 8).ok());
  ASSERT_TRUE(s.aperture.revoke().ok());
  EXPECT_EQ(err_of(s.remote.read(0, &value, 8)), ESTALE);
  // A write may be on its way when the refusal of the one before comes back.
  EXPECT_TRUE(eventually([&] { return err_of(s.remote.write(0, &value, 8)) == ESTALE; }));
  EXPECT_EQ(err_of(RemoteAperture::import(*b_, cookie, 10'000)), ESTALE);
  auto again = must(Aperture::export_memory(*a_, s.memory, 0, 8192, Rights::kReadWrite));
  auto remote = must(RemoteAperture::import(*b_, again.cookie(), 10'000));
  EXPECT_TRUE(remote.write(0, &value, 8).ok());
}

TEST_P(ConformanceTest, NothingArrivesAfterRevokeHasReturned) {
  for (bool own : {false, true}) {
    for (int round = 0; round < 8; ++round) {
      auto memory = must(Memory::allocate(64 * 1024));
      std::span<std::byte> bytes = memory.span();
      auto aperture =
          own ? must(Aperture::export_region(*a_, bytes, Rights::kWrite))
              : must(Aperture::export_memory(*a_, memory, 0, bytes.size(), Rights::kWrite));
      auto remote = must(RemoteAperture::import(*b_, aperture.cookie(), 10'000));
      std::atomic<std::uint64_t> writes{0};
      std::atomic<bool> stop{false};
      std::thread writer([&] {
        std::vector<std::byte> data(32 * 1024);
        for (std::uint64_t i = 1; !stop.load(); ++i) {
          std::memset(data.data(), static_cast<int>(i), data.size());
          if (!remote.write((i % 2) * data.size(), data.data(), data.size()).ok()) break;
          writes.fetch_add(1);
          if (packets()) std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
      });
      ASSERT_TRUE(eventually([&] { return writes.load() >= 3; }));
      ASSERT_TRUE(aperture.revoke().ok());
      std::vector<std::byte> then(bytes.begin(), bytes.end());
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      stop.store(true);
      writer.join();
      settle();
      EXPECT_EQ(std::memcmp(then.data(), bytes.data(), then.size()), 0) << "own memory: " << own;
    }
  }
}

TEST_P(ConformanceTest, AccessesFailWhenTheLinkIsDown) {
  Shared s = share(4096);
  std::uint64_t value = 1;
  ASSERT_TRUE(s.remote.write(0, &value, 8).ok());
  auto tripwire = must(Tripwire::create(s.aperture, 0, 8));
  tripwire.arm();  // mapped memory stays reachable; that the peer has gone shows where it is asked
  take_link_down();
  EXPECT_TRUE(eventually([&] { return err_of(s.remote.write(0, &value, 8)) == ECONNRESET; }));
}

// --- tripwires and event queues
// --------------------------------------------------------------------

TEST_P(ConformanceTest, ATripwireFiresOnceForWritesInItsRange) {
  Shared s = share(4096);
  auto tripwire = must(Tripwire::create(s.aperture, 1024, 64));
  std::uint64_t value = 9;
  auto write = [&](std::uint64_t offset) {
    ASSERT_TRUE(s.remote.write(offset, &value, 8).ok());
    std::byte b;
    ASSERT_TRUE(s.remote.read(3000, &b, 1).ok());
  };
  write(1024);
  EXPECT_FALSE(tripwire.test_and_clear()) << "not armed yet";
  tripwire.arm();
  write(1016);
  write(1088);
  EXPECT_FALSE(tripwire.test_and_clear()) << "outside its range";
  write(1080);
  EXPECT_TRUE(tripwire.test_and_clear());
  write(1024);
  EXPECT_FALSE(tripwire.test_and_clear()) << "single shot";
  tripwire.arm();
  write(1020);  // overlaps its first bytes
  EXPECT_TRUE(tripwire.test_and_clear());
}

TEST_P(ConformanceTest, APersistentTripwireFiresUntilDisarmed) {
  Shared s = share(4096);
  auto tripwire = must(Tripwire::create(s.aperture, 0, 8, {.persistent = true}));
  tripwire.arm();
  std::uint64_t value = 1;
  auto write = [&] {
    ASSERT_TRUE(s.remote.write(0, &value, 8).ok());
    std::byte b;
    ASSERT_TRUE(s.remote.read(3000, &b, 1).ok());
  };
  for (int i = 0; i < 5; ++i) {
    write();
    EXPECT_TRUE(tripwire.test_and_clear());
  }
  tripwire.disarm();
  write();
  EXPECT_FALSE(tripwire.test_and_clear());
}

TEST_P(ConformanceTest, ATripwireOnReadingFiresWhenAPeerReads) {
  Shared s = share(4096);
  auto tripwire = must(Tripwire::create(s.aperture, 512, 8, {.on_write = false, .on_read = true}));
  tripwire.arm();
  std::uint64_t value = 1;
  ASSERT_TRUE(s.remote.write(512, &value, 8).ok());
  ASSERT_TRUE(s.remote.read(0, &value, 8).ok());
  EXPECT_FALSE(tripwire.test_and_clear());
  ASSERT_TRUE(s.remote.read(512, &value, 8).ok());
  EXPECT_TRUE(tripwire.test_and_clear());
}

TEST_P(ConformanceTest, WhoWaitsForATripwireFindsEverythingWrittenBefore) {
  Shared s = share(32 * 1024);
  auto tripwire = must(Tripwire::create(s.aperture, 0, 8));
  std::atomic<std::uint64_t> seen{0};
  std::thread writer([&] {
    for (std::uint64_t i = 1; i <= 40; ++i) {
      auto data = pattern(30'000, i);
      ASSERT_TRUE(s.remote.write(64, data.data(), data.size()).ok());
      ASSERT_TRUE(s.remote.write(0, &i, 8).ok());
      while (seen.load() < i) std::this_thread::yield();
    }
  });
  auto& word = *reinterpret_cast<std::atomic<std::uint64_t>*>(s.memory.data());
  for (std::uint64_t i = 1; i <= 40; ++i) {
    while (word.load(std::memory_order_acquire) != i) {
      tripwire.arm();
      if (word.load(std::memory_order_acquire) == i) break;
      ASSERT_TRUE(tripwire.wait(20'000).ok());
    }
    // Only when the tripwire has fired is all of it promised; the flag alone may come early.
    if (packets()) settle();
    EXPECT_TRUE(is_pattern(s.memory.span().subspan(64, 30'000), i, 0)) << "round " << i;
    seen.store(i);
  }
  writer.join();
}

TEST_P(ConformanceTest, EventsOfManyTripwiresComeThroughOneQueue) {
  Shared s = share(64 * 1024);
  auto queue = must(EventQueue::create(*a_));
  std::vector<Tripwire> tripwires;
  for (std::uint64_t i = 0; i < 100; ++i) {
    tripwires.push_back(must(Tripwire::create(s.aperture, i * 640, 8)));
    ASSERT_TRUE(tripwires.back().register_with(queue, 1000 + i).ok());
  }
  for (Tripwire& t : tripwires) t.arm();
  std::thread writer([&] {
    for (std::uint64_t i = 0; i < 100; ++i) {
      ASSERT_TRUE(s.remote.write(i * 640, &i, 8).ok());
      if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  std::vector<int> seen(100);
  int total = 0;
  while (total < 100) {
    Event events[16];
    auto n = queue.wait(events, 10'000);
    ASSERT_TRUE(n.ok()) << n.error().message() << " after " << total;
    for (std::size_t i = 0; i < *n; ++i, ++total) {
      ASSERT_EQ(events[i].kind, EventKind::kTripwire);
      ++seen[events[i].tag - 1000];
    }
  }
  writer.join();
  EXPECT_EQ(seen, std::vector<int>(100, 1));
}

TEST_P(ConformanceTest, AnEventMakesTheQueuesDescriptorReadable) {
  Shared s = share(4096);
  auto queue = must(EventQueue::create(*a_));
  auto tripwire = must(Tripwire::create(s.aperture, 0, 8));
  ASSERT_TRUE(tripwire.register_with(queue, 5).ok());
  const int fd = must(queue.fd());
  for (int i = 0; i < 5; ++i) {
    tripwire.arm();
    ASSERT_TRUE(queue.arm_fd());
    pollfd p{fd, POLLIN, 0};
    ASSERT_EQ(::poll(&p, 1, 0), 0);
    std::uint64_t value = 1;
    ASSERT_TRUE(s.remote.write(0, &value, 8).ok());
    ASSERT_EQ(::poll(&p, 1, 10'000), 1);
    Event event;
    ASSERT_EQ(queue.poll({&event, 1}), 1u);
    EXPECT_EQ(event.tag, 5u);
    EXPECT_EQ(queue.poll({&event, 1}), 0u);
  }
}

// --- out-of-band
// -----------------------------------------------------------------------------------

class OobCollector final : public OobSink {
 public:
  void on_oob(const std::shared_ptr<nic::Link>&, const OobMessage& message) override {
    std::lock_guard lock(mutex_);
    messages_.push_back(message);
  }
  void on_link_down(const std::shared_ptr<nic::Link>&) override { down_.fetch_add(1); }
  std::vector<OobMessage> messages() {
    std::lock_guard lock(mutex_);
    return messages_;
  }
  int down() const { return down_.load(); }

 private:
  std::mutex mutex_;
  std::vector<OobMessage> messages_;
  std::atomic<int> down_{0};
};

TEST_P(ConformanceTest, OutOfBandMessagesArriveInOrderAndWhole) {
  auto sink = std::make_shared<OobCollector>();
  const std::uint32_t endpoint = must(a_->core()->add_endpoint(sink));
  auto wire = link();
  for (std::uint32_t i = 0; i < 400; ++i) {
    OobMessage m;
    m.to = endpoint;
    m.from = i;
    m.type = 77;
    m.length = i % (kOobPayload + 1);
    fill_pattern({m.payload.data(), m.length}, i, 0);
    ASSERT_TRUE(eventually([&] { return err_of(wire->send_oob(m)) != ENOBUFS; }));
  }
  ASSERT_TRUE(eventually([&] { return sink->messages().size() == 400; }));
  auto all = sink->messages();
  for (std::uint32_t i = 0; i < 400; ++i) {
    ASSERT_EQ(all[i].from, i);
    ASSERT_EQ(all[i].length, i % (kOobPayload + 1));
    ASSERT_TRUE(is_pattern({all[i].payload.data(), all[i].length}, i, 0));
  }
}

TEST_P(ConformanceTest, AnOutOfBandMessageComesAfterTheWritesBeforeIt) {
  Shared s = share(64 * 1024);
  auto sink = std::make_shared<OobCollector>();
  const std::uint32_t endpoint = must(a_->core()->add_endpoint(sink));
  auto wire = link();
  for (std::uint32_t i = 0; i < 30; ++i) {
    auto data = pattern(60'000, i);
    ASSERT_TRUE(s.remote.write(0, data.data(), data.size()).ok());
    OobMessage m;
    m.to = endpoint;
    ASSERT_TRUE(wire->send_oob(m).ok());
    ASSERT_TRUE(eventually([&] { return sink->messages().size() == i + 1; }));
    ASSERT_TRUE(is_pattern(s.memory.span().first(60'000), i, 0));
  }
}

TEST_P(ConformanceTest, AMessageToNobodyIsCounted) {
  OobMessage m;
  m.to = 0x7fffffff;
  ASSERT_TRUE(link()->send_oob(m).ok());
  EXPECT_TRUE(eventually([&] { return a_->counters().oob_discarded == 1; }));
}

TEST_P(ConformanceTest, BothEndsHearOnceThatTheLinkIsDown) {
  auto at_a = std::make_shared<OobCollector>();
  auto at_b = std::make_shared<OobCollector>();
  ASSERT_TRUE(a_->core()->add_endpoint(at_a).ok());
  ASSERT_TRUE(b_->core()->add_endpoint(at_b).ok());
  auto wire = link();
  auto back = link_back();
  take_link_down();
  EXPECT_TRUE(eventually([&] { return at_a->down() == 1 && at_b->down() == 1; }));
  EXPECT_FALSE(wire->alive());
  EXPECT_FALSE(back->alive());
  EXPECT_EQ(err_of(wire->send_oob({})), ECONNRESET);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(at_a->down(), 1);
  EXPECT_EQ(at_b->down(), 1);
}

// --- RDMA
// ------------------------------------------------------------------------------------------

// Takes `count` completions or fails.
std::vector<RdmaCompletion> take(RdmaQueue& queue, std::size_t count) {
  std::vector<RdmaCompletion> all;
  while (all.size() < count) {
    RdmaCompletion some[32];
    auto n = queue.wait(some, 20'000);
    if (!n.ok()) {
      ADD_FAILURE() << n.error().message() << " after " << all.size() << " of " << count;
      break;
    }
    all.insert(all.end(), some, some + *n);
  }
  return all;
}

TEST_P(ConformanceTest, RdmaMovesRequestsOfAnySize) {
  constexpr std::size_t kMost = 3 << 20;
  Shared s = share(kMost);
  auto queue = must(RdmaQueue::create(*b_));
  std::vector<std::byte> back(kMost);
  std::uint64_t seed = 1;
  for (std::size_t n :
       {0ul, 1ul, 8ul, 1399ul, 1400ul, 1401ul, 4096ul, 262'144ul, 262'145ul, kMost - 3}) {
    auto data = pattern(n, ++seed);
    ASSERT_TRUE(queue.write(s.remote, 3, data.data(), n, {.cookie = 1}).ok());
    ASSERT_TRUE(queue.read(s.remote, 3, back.data(), n, {.cookie = 2}).ok());
    auto done = take(queue, 2);
    ASSERT_EQ(done.size(), 2u);
    for (std::uint64_t i = 0; i < 2; ++i) {
      EXPECT_EQ(done[i].cookie, i + 1);
      EXPECT_EQ(done[i].status, 0) << n;
      EXPECT_EQ(done[i].bytes, n);
    }
    ASSERT_TRUE(is_pattern(std::span(back).first(n), seed, 0)) << n;
    ASSERT_TRUE(is_pattern(s.memory.span().subspan(3, n), seed, 0)) << n;
  }
  EXPECT_GT(RdmaQueue::counters(*b_).splits, 0u);
}

TEST_P(ConformanceTest, CompletionsOfEachQueueComeInTheOrderOfPosting) {
  constexpr std::size_t kQueues = 8, kRequests = 40, kSlot = 8192;
  Shared s = share(kQueues * kSlot);
  std::vector<RdmaQueue> queues;
  std::vector<std::vector<std::byte>> data(kQueues);
  for (std::size_t q = 0; q < kQueues; ++q) queues.push_back(must(RdmaQueue::create(*b_, 64)));
  Random random(8);
  for (std::size_t r = 0; r < kRequests; ++r) {
    for (std::size_t q = 0; q < kQueues; ++q) {
      if (data[q].empty()) data[q] = pattern(kSlot, q);
      const std::size_t n = random.size_up_to(kSlot);
      ASSERT_TRUE(queues[q].write(s.remote, q * kSlot, data[q].data(), n, {.cookie = r}).ok());
    }
  }
  for (std::size_t q = 0; q < kQueues; ++q) {
    auto done = take(queues[q], kRequests);
    ASSERT_EQ(done.size(), kRequests);
    for (std::size_t r = 0; r < kRequests; ++r) {
      EXPECT_EQ(done[r].cookie, r);
      EXPECT_EQ(done[r].status, 0);
    }
  }
}

TEST_P(ConformanceTest, LaterRequestsOfAQueueOverwriteEarlierOnes) {
  Shared s = share(16 * 1024);
  auto queue = must(RdmaQueue::create(*b_));
  std::vector<std::vector<std::byte>> data;
  for (std::uint64_t i = 0; i < 60; ++i) data.push_back(pattern(10'000, i));
  for (std::uint64_t i = 0; i < 60; ++i) {
    ASSERT_TRUE(queue.write(s.remote, 100 * (i % 7), data[i].data(), data[i].size()).ok());
  }
  std::vector<std::byte> expected(16 * 1024);
  for (std::uint64_t i = 0; i < 60; ++i) {
    std::copy(data[i].begin(), data[i].end(),
              expected.begin() + static_cast<std::ptrdiff_t>(100 * (i % 7)));
  }
  ASSERT_EQ(take(queue, 60).size(), 60u);
  EXPECT_EQ(std::memcmp(s.memory.data(), expected.data(), expected.size()), 0);
}

TEST_P(ConformanceTest, RdmaErrorsComeAsCompletions) {
  Shared s = share(8192, Rights::kRead);
  auto queue = must(RdmaQueue::create(*b_));
  std::vector<std::byte> data(8192);
  ASSERT_TRUE(queue.read(s.remote, 1, data.data(), 8192, {.cookie = 1}).ok());
  ASSERT_TRUE(queue.write(s.remote, 0, data.data(), 8, {.cookie = 2}).ok());
  ASSERT_TRUE(queue.read(s.remote, 0, data.data(), 8192, {.cookie = 3}).ok());
  auto done = take(queue, 3);
  ASSERT_EQ(done.size(), 3u);
  EXPECT_EQ(done[0].status, ERANGE);
  EXPECT_EQ(done[1].status, EACCES);
  EXPECT_EQ(done[2].status, 0);
  ASSERT_TRUE(s.aperture.revoke().ok());
  ASSERT_TRUE(queue.read(s.remote, 0, data.data(), 8, {.cookie = 4}).ok());
  done = take(queue, 1);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, ESTALE);
  EXPECT_EQ(done[0].bytes, 0u);
}

TEST_P(ConformanceTest, AWriteToARevokedApertureCompletesWithAnError) {
  Shared s = share(8192);
  auto queue = must(RdmaQueue::create(*b_));
  std::vector<std::byte> data(8192);
  ASSERT_TRUE(s.aperture.revoke().ok());
  for (std::uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(queue.write(s.remote, 0, data.data(), 8192, {.cookie = i}).ok());
    auto done = take(queue, 1);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, ESTALE);
  }
}

TEST_P(ConformanceTest, ADestroyedQueueLeavesLocalMemoryAlone) {
  Shared s = share(1 << 20);
  std::vector<std::byte> local(1 << 20);
  for (int round = 0; round < 5; ++round) {
    {
      auto queue = must(RdmaQueue::create(*b_));
      for (int i = 0; i < 16; ++i) {
        ASSERT_TRUE(queue.read(s.remote, 0, local.data(), local.size()).ok());
      }
    }
    std::memset(local.data(), 0x5a, local.size());
    settle();
    EXPECT_TRUE(
        std::all_of(local.begin(), local.end(), [](std::byte b) { return b == std::byte{0x5a}; }));
  }
  // The others go on.
  auto queue = must(RdmaQueue::create(*b_));
  ASSERT_TRUE(queue.read(s.remote, 0, local.data(), local.size()).ok());
  auto done = take(queue, 1);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(done[0].status, 0);
}

TEST_P(ConformanceTest, OutstandingRequestsFailWhenTheLinkGoesDown) {
  if (!packets()) GTEST_SKIP() << "over shared memory nothing is outstanding";
  Shared s = share(1 << 20);
  std::vector<std::byte> local(1 << 20);
  auto queue = must(RdmaQueue::create(*b_));
  pause();
  for (std::uint64_t i = 0; i < 6; ++i) {
    ASSERT_TRUE(queue.write(s.remote, 0, local.data(), local.size(), {.cookie = i}).ok());
  }
  take_link_down();
  auto done = take(queue, 6);
  ASSERT_EQ(done.size(), 6u);
  for (std::uint64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(done[i].cookie, i);
    EXPECT_EQ(done[i].status, ECONNRESET);
  }
}

TEST_P(ConformanceTest, TheTlbTakesPartWhereTheLinkTranslates) {
  Shared s = share(256 * 1024);
  auto queue = must(RdmaQueue::create(*b_));
  std::vector<std::byte> data(256 * 1024);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(queue.write(s.remote, 0, data.data(), data.size()).ok());
  ASSERT_EQ(take(queue, 4).size(), 4u);
  const RdmaCounters c = RdmaQueue::counters(*b_);
  if (!link()->capabilities().translates) {
    EXPECT_EQ(c.tlb_hits + c.tlb_misses, 0u);
    return;
  }
  EXPECT_GE(c.tlb_hits + c.tlb_misses, 4 * 64u);
  // An address that is not there becomes a completion, and the queue goes on.
  void* hole = ::mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  ASSERT_TRUE(queue.write(s.remote, 0, hole, 8192, {.cookie = 1}).ok());
  ASSERT_TRUE(queue.read(s.remote, 0, hole, 8192, {.cookie = 2}).ok());
  ASSERT_TRUE(queue.read(s.remote, 0, data.data(), 8192, {.cookie = 3}).ok());
  auto done = take(queue, 3);
  ASSERT_EQ(done.size(), 3u);
  EXPECT_EQ(done[0].status, EFAULT);
  EXPECT_EQ(done[1].status, EFAULT);
  EXPECT_EQ(done[2].status, 0);
  ::munmap(hole, 8192);
}

TEST_P(ConformanceTest, RdmaFiresTripwiresAndEvents) {
  Shared s = share(512 * 1024);
  auto owner_queue = must(EventQueue::create(*a_));
  auto tripwire = must(Tripwire::create(s.aperture, 512 * 1024 - 8, 8));
  ASSERT_TRUE(tripwire.register_with(owner_queue, 1).ok());
  auto events = must(EventQueue::create(*b_));
  auto queue = must(RdmaQueue::create(*b_));
  ASSERT_TRUE(queue.register_with(events, 2).ok());
  Event event;
  while (events.poll({&event, 1}) > 0) {
  }
  tripwire.arm();
  auto data = pattern(512 * 1024, 4);
  ASSERT_TRUE(queue.write(s.remote, 0, data.data(), data.size()).ok());
  ASSERT_EQ(err_of(owner_queue.wait({&event, 1}, 10'000)), 0);
  EXPECT_EQ(event.tag, 1u);
  EXPECT_TRUE(is_pattern(s.memory.span(), 4, 0));
  ASSERT_EQ(err_of(events.wait({&event, 1}, 10'000)), 0);
  EXPECT_EQ(event.tag, 2u);
  EXPECT_EQ(event.kind, EventKind::kRdma);
  EXPECT_EQ(take(queue, 1).size(), 1u);
}

// --- streams
// ---------------------------------------------------------------------------------------

void send_all(Stream& stream, std::uint64_t seed, std::uint64_t total, std::size_t most) {
  EXPECT_EQ(send_pattern(stream, seed, 0, total, most), total);
}
void receive_all(Stream& stream, std::uint64_t seed, std::uint64_t total, std::size_t most) {
  Received r = receive_pattern(stream, seed, 0, total, most);
  EXPECT_TRUE(r.right) << "at byte " << r.bytes;
  EXPECT_EQ(r.err, 0);
  EXPECT_EQ(r.bytes, total);
}

void both_ways(Stream& client, Stream& server, std::uint64_t total, std::size_t most) {
  std::thread t1([&] { send_all(client, 1, total, most); });
  std::thread t2([&] { receive_all(server, 1, total, most); });
  std::thread t3([&] { send_all(server, 2, total, most); });
  receive_all(client, 2, total, most);
  t1.join();
  t2.join();
  t3.join();
}

TEST_P(ConformanceTest, AStreamCarriesBytesOfAnySizeBothWays) {
  auto [client, server] = connect();
  both_ways(client, server, packets() ? 3'000'000 : 20'000'000, 100'000);
  EXPECT_STREQ(client.peer().path, udp_ ? "udp" : packets() ? "plain" : "shm");
  EXPECT_TRUE(client.peer().node == a_->node());
}

TEST_P(ConformanceTest, SmallRingsPushBack) {
  ContextOptions options;
  options.ring_bytes = 1024;
  start(options);
  auto [client, server] = connect();
  std::vector<std::byte> data = pattern(1 << 16, 7);
  std::size_t sent = 0;
  while (true) {
    auto n = client.try_send(std::span(data).subspan(sent, 100));
    if (!n.ok()) {
      EXPECT_EQ(n.error().err, EAGAIN);
      settle();
      break;
    }
    sent += *n;
  }
  EXPECT_GT(sent, 0u);
  EXPECT_LE(sent, 1024u);
  std::vector<std::byte> got(sent);
  for (std::size_t at = 0; at < sent;) {
    auto n = server.recv(std::span(got).subspan(at), 10'000);
    ASSERT_TRUE(n.ok());
    at += *n;
  }
  EXPECT_TRUE(is_pattern(got, 7, 0));
  both_ways(client, server, 60'000, 3000);
}

TEST_P(ConformanceTest, AHalfClosedStreamStillReceives) {
  auto [client, server] = connect();
  ASSERT_TRUE(client.send(text("question")).ok());
  ASSERT_TRUE(client.shutdown_send().ok());
  EXPECT_EQ(receive_text(server), "question");
  EXPECT_EQ(receive_text(server), "");
  EXPECT_EQ(err_of(client.send(text("more"))), EPIPE);
  ASSERT_TRUE(server.send(text("answer")).ok());
  EXPECT_EQ(receive_text(client), "answer");
  server.close();
  EXPECT_EQ(receive_text(client), "");
}

TEST_P(ConformanceTest, WhatWasSentBeforeCloseArrives) {
  for (int round = 0; round < 20; ++round) {
    auto [client, server] = connect();
    auto data = pattern(50'000, 11);
    ASSERT_EQ(must(client.send(data, 10'000)), data.size());
    client.close();
    Received r = receive_pattern(server, 11, 0, ~std::uint64_t{0}, 5000);
    EXPECT_TRUE(r.right);
    EXPECT_TRUE(r.end_of_stream);
    EXPECT_EQ(r.bytes, data.size());
    EXPECT_TRUE(eventually([&s = server] { return err_of(s.send(text("x"))) == EPIPE; }));
  }
}

TEST_P(ConformanceTest, WhenTheLinkGoesDownTheRestIsReadThenTheStreamIsReset) {
  auto [client, server] = connect();
  auto data = pattern(50'000, 12);
  ASSERT_EQ(must(client.send(data, 10'000)), data.size());
  settle();  // what is still under way when a wire is cut is lost
  take_link_down();
  Received r = receive_pattern(server, 12, 0, ~std::uint64_t{0}, 5000);
  EXPECT_TRUE(r.right);
  EXPECT_EQ(r.err, ECONNRESET);
  EXPECT_EQ(r.bytes, data.size());
  EXPECT_TRUE(eventually([&c = client] { return err_of(c.send(text("x"))) == ECONNRESET; }));
}

TEST_P(ConformanceTest, SleepersAreWokenWhenTheLinkGoesDown) {
  auto [client, server] = connect();
  auto [full_client, full_server] = connect();
  int received = 0;
  int sent = 0;
  std::thread reader([&, stream = &server] {
    std::byte b;
    received = err_of(stream->recv({&b, 1}, 20'000));
  });
  std::thread writer([&, stream = &full_client] {
    std::vector<std::byte> data(1 << 20);
    for (;;) {
      auto n = stream->send(data, 20'000);
      if (!n.ok()) {
        sent = n.error().err;
        return;
      }
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  take_link_down();
  reader.join();
  writer.join();
  EXPECT_EQ(received, ECONNRESET);
  EXPECT_EQ(sent, ECONNRESET);
}

TEST_P(ConformanceTest, TheEndOfAContextResetsItsPeersStreams) {
  auto [client, server] = connect();
  ASSERT_TRUE(server.send(text("last words")).ok());
  settle();
  a_.reset();
  if (udp_) udp_->end_a();
  EXPECT_EQ(receive_text(client), "last words");
  std::byte b;
  EXPECT_EQ(err_of(client.recv({&b, 1}, 10'000)), ECONNRESET);
}

TEST_P(ConformanceTest, SleepingPartnersWakeEachOther) {
  ContextOptions options;
  options.wait.mode = WaitOptions::Mode::kSleep;
  start(options);
  auto [client, server] = connect();
  std::thread echo([&, stream = &server] {
    std::uint64_t word;
    for (int i = 0; i < 300; ++i) {
      if (!stream->recv(std::as_writable_bytes(std::span(&word, 1)), 20'000).ok()) return;
      (void)stream->send(std::as_bytes(std::span(&word, 1)));
    }
  });
  for (std::uint64_t i = 0; i < 300; ++i) {
    std::uint64_t word = i;
    ASSERT_TRUE(client.send(std::as_bytes(std::span(&word, 1))).ok());
    ASSERT_EQ(err_of(client.recv(std::as_writable_bytes(std::span(&word, 1)), 20'000)), 0) << i;
    ASSERT_EQ(word, i);
  }
  echo.join();
}

TEST_P(ConformanceTest, ManyStreamsShareALink) {
  ContextOptions options;
  options.ring_bytes = 16 * 1024;
  start(options);
  constexpr std::size_t kStreams = 20;
  std::vector<std::pair<Stream, Stream>> pairs;
  for (std::size_t i = 0; i < kStreams; ++i) pairs.push_back(connect());
  auto queue = must(EventQueue::create(*a_));
  for (std::size_t i = 0; i < kStreams; ++i) {
    ASSERT_TRUE(pairs[i].second.register_with(queue, i).ok());
  }
  std::thread sender([&] {
    for (std::uint64_t at = 0; at < 40'000; at += 1000) {
      for (std::size_t i = 0; i < kStreams; ++i) {
        auto data = pattern(1000, i, at);
        EXPECT_EQ(must(pairs[i].first.send(data, 20'000)), 1000u);
      }
    }
    for (auto& p : pairs) p.first.close();
  });
  std::vector<std::uint64_t> got(kStreams);
  std::size_t ended = 0;
  std::vector<bool> over(kStreams);
  std::vector<std::byte> buffer(8192);
  while (ended < kStreams) {
    Event events[8];
    auto n = queue.wait(events, 20'000);
    ASSERT_TRUE(n.ok()) << n.error().message() << ", " << ended << " streams have ended";
    for (std::size_t e = 0; e < *n; ++e) {
      const std::size_t i = events[e].tag;
      while (!over[i]) {
        auto r = pairs[i].second.try_recv(buffer);
        if (!r.ok()) {
          ASSERT_EQ(r.error().err, EAGAIN);
          break;
        }
        if (*r == 0) {
          over[i] = true;
          ++ended;
          break;
        }
        ASSERT_TRUE(is_pattern(std::span(buffer).first(*r), i, got[i]));
        got[i] += *r;
      }
    }
  }
  sender.join();
  EXPECT_EQ(got, std::vector<std::uint64_t>(kStreams, 40'000));
}

TEST_P(ConformanceTest, ClosedConnectionsLeaveNothingBehind) {
  (void)link();
  const ContextCounters before_a = a_->counters(), before_b = b_->counters();
  for (int i = 0; i < 50; ++i) {
    auto [client, server] = connect();
    ASSERT_TRUE(client.send(text("hello")).ok());
    EXPECT_EQ(receive_text(server), "hello");
  }
  EXPECT_TRUE(eventually([&] {
    return a_->counters().apertures == before_a.apertures &&
           b_->counters().apertures == before_b.apertures &&
           a_->counters().tripwires == before_a.tripwires &&
           b_->counters().tripwires == before_b.tripwires;
  }));
  EXPECT_EQ(a_->counters().hostile_peers, 0u);
  EXPECT_EQ(b_->counters().hostile_peers, 0u);
}

TEST_P(ConformanceTest, RegionsOfClosedConnectionsAreUsedAgain) {
  auto wire = link();
  auto back = link_back();
  for (int i = 0; i < 40; ++i) {
    auto [client, server] = connect();
    if (i % 2 == 0) {
      client.close();
      EXPECT_EQ(receive_text(server), "");
      server.close();
    } else {
      server.close();
      EXPECT_EQ(receive_text(client), "");
      client.close();
    }
    settle();
  }
  const std::uint64_t bytes = engine::kRegionRing + b_->options().ring_bytes;
  for (auto& [context, l] : {std::pair{&*a_, back}, std::pair{&*b_, wire}}) {
    auto arena = context->core()->links().arena(l.get());
    EXPECT_TRUE(eventually([&] {
      auto region = must(arena->allocate(bytes));
      const std::uint64_t offset = region.offset;
      arena->free(region);
      return offset <= 4 * bytes;
    })) << (context == &*a_ ? "server" : "client");
  }
}

// --- message endpoints
// -----------------------------------------------------------------------------

TEST_P(ConformanceTest, MessagesOfAnySizeKeepTheirBoundsAndOrder) {
  auto server = must(MessageEndpoint::create(*a_));
  auto client = must(MessageEndpoint::create(*b_));
  const PeerIndex to = must(client.connect(server.address(), 10'000));
  constexpr std::uint64_t kMessages = 300;
  auto size_of = [](std::uint64_t i) -> std::size_t {
    if (i % 50 == 49) return 200'000 + i;  // longer than the ring's largest record
    return Random(i).size_up_to(20'000) - 1;
  };
  std::thread sender([&] {
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      auto data = pattern(size_of(i), i);
      auto s = client.send(to, data, 20'000);
      ASSERT_TRUE(s.ok()) << s.error().message() << " message " << i;
    }
    std::byte b[16];
    auto m = client.recv(b, 20'000);
    ASSERT_TRUE(m.ok()) << m.error().message();
    EXPECT_EQ(m->size, 3u);
  });
  std::vector<std::byte> buffer(300'000);
  PeerIndex from = 0;
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    auto m = server.recv(buffer, 20'000);
    ASSERT_TRUE(m.ok()) << m.error().message() << " message " << i;
    ASSERT_EQ(m->size, size_of(i)) << i;
    ASSERT_FALSE(m->truncated);
    ASSERT_TRUE(is_pattern(std::span(buffer).first(m->size), i, 0)) << i;
    from = m->from;
  }
  EXPECT_TRUE(server.send(from, text("bye"), 10'000).ok());
  sender.join();
}

TEST_P(ConformanceTest, AnEndpointHearsManyPeers) {
  auto server = must(MessageEndpoint::create(*a_));
  constexpr std::size_t kPeers = 12;
  std::vector<MessageEndpoint> clients;
  std::vector<PeerIndex> to;
  for (std::size_t i = 0; i < kPeers; ++i) {
    clients.push_back(must(MessageEndpoint::create(*b_)));
    to.push_back(must(clients[i].connect(server.address(), 10'000)));
  }
  std::thread sender([&] {
    for (std::uint64_t round = 0; round < 50; ++round) {
      for (std::size_t i = 0; i < kPeers; ++i) {
        const std::uint64_t word[2] = {i, round};
        ASSERT_TRUE(clients[i].send(to[i], std::as_bytes(std::span(word)), 20'000).ok());
      }
      if (round % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  std::vector<std::uint64_t> next(kPeers);
  for (std::size_t n = 0; n < 50 * kPeers; ++n) {
    std::uint64_t word[2];
    auto m = server.recv(std::as_writable_bytes(std::span(word)), 20'000);
    ASSERT_TRUE(m.ok()) << m.error().message() << " message " << n;
    ASSERT_EQ(m->size, sizeof word);
    ASSERT_LT(word[0], kPeers);
    ASSERT_EQ(word[1], next[word[0]]++);
  }
  sender.join();
}

TEST_P(ConformanceTest, AnEndpointHearsThatAPeerHasGone) {
  auto server = must(MessageEndpoint::create(*a_));
  auto client = must(MessageEndpoint::create(*b_));
  const PeerIndex to = must(client.connect(server.address(), 10'000));
  ASSERT_TRUE(client.send(to, text("one"), 10'000).ok());
  settle();
  std::byte buffer[16];
  auto m = server.recv(buffer, 10'000);
  ASSERT_TRUE(m.ok());
  take_link_down();
  PeerIndex gone = 99;
  EXPECT_TRUE(eventually([&] {
    (void)server.try_recv(buffer);
    return server.take_departed(&gone);
  }));
  EXPECT_EQ(gone, m->from);
  EXPECT_TRUE(eventually([&] { return err_of(client.send(to, text("two"), 1000)) == ECONNRESET; }));
}

// --- out-of-band endpoints
// -------------------------------------------------------------------------

TEST_P(ConformanceTest, OobEndpointsExchangeMessagesAndDiscardWhatTheyCannotKeep) {
  ContextOptions options;
  options.oob_queue = 4;
  start(options);
  auto server = must(OobEndpoint::create(*a_));
  auto client = must(OobEndpoint::create(*b_));
  for (std::uint32_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(client.send(server.address(), i, text("ping"), 10'000).ok());
    auto m = server.recv(10'000);
    ASSERT_TRUE(m.ok()) << m.error().message();
    EXPECT_EQ(m->type, i);
    EXPECT_EQ(m->length, 4u);
    ASSERT_TRUE(server.send(m->from, i, text("pong"), 10'000).ok());
    m = client.recv(10'000);
    ASSERT_TRUE(m.ok()) << m.error().message();
    EXPECT_EQ(m->type, i);
  }
  for (std::uint32_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(client.send(server.address(), i, {}, 10'000).ok());
  }
  EXPECT_TRUE(eventually([&] { return a_->counters().oob_discarded == 6; }));
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_EQ(must(server.try_recv()).type, i);
  EXPECT_EQ(err_of(server.try_recv()), EAGAIN);
}

}  // namespace
}  // namespace clan::test

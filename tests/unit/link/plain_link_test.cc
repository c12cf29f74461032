// The packet network of the tests itself: that it does to packets what the conformance tests rely
// on.
#include "support/plain_link.h"

#include <clan/aperture.h>
#include <clan/message.h>
#include <clan/tripwire.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "engine/connection/connection.h"
#include "engine/message/message_endpoint.h"
#include "support/pattern.h"
#include "support/streams.h"

namespace clan::test {
namespace {

using nic::PutOrder;
using Type = PlainPacket::Type;

struct PlainLinkTest : testing::Test {
  static PlainOptions scrambled() {
    PlainOptions o;
    o.seed = 42;
    o.reorder_window = 16;
    return o;
  }

  void start(const PlainOptions& options) {
    network = std::make_unique<PlainNetwork>(options);
    std::tie(at_a, at_b) = network->join(*a.core(), *b.core());
  }
  Aperture share(std::size_t bytes, Rights rights = Rights::kReadWrite) {
    memory.emplace_back(must(Memory::allocate(bytes)));
    return must(Aperture::export_memory(a, memory.back(), 0, bytes, rights));
  }
  std::span<std::byte> bytes() { return memory.back().span(); }
  nic::RemoteHandle import(const Aperture& aperture) {
    return must(at_b->import(aperture.cookie(), false));
  }
  void put(const nic::RemoteHandle& h, std::uint64_t offset, std::span<const std::byte> data,
           PutOrder order = PutOrder::kAny) {
    ASSERT_TRUE(at_b->put(h, offset, data, order).ok());
  }
  void put_word(const nic::RemoteHandle& h, std::uint64_t offset, std::uint64_t word,
                PutOrder order = PutOrder::kAfterEarlier) {
    put(h, offset, std::as_bytes(std::span(&word, 1)), order);
  }

  std::unique_ptr<PlainNetwork> network;
  Context a = must(Context::create());
  Context b = must(Context::create());
  std::shared_ptr<PlainLink> at_a, at_b;
  std::vector<Memory> memory;
};

TEST_F(PlainLinkTest, InOrderMeansInOrder) {
  PlainOptions options;
  options.delay_us = 50;
  start(options);
  auto aperture = share(64 * 1024);
  auto h = import(aperture);
  put(h, 0, pattern(64 * 1024, 1));
  for (std::uint64_t i = 0; i < 200; ++i) put_word(h, 8 * i, i, PutOrder::kAny);
  network->settle();
  EXPECT_EQ(network->counters().overtaking, 0u);
  EXPECT_EQ(network->counters().delivered, 200u + (64 * 1024 + 1399) / 1400);
}

TEST_F(PlainLinkTest, PacketsOvertakeEachOtherAndNoneIsLost) {
  start(scrambled());
  auto aperture = share(128 * 1024);
  auto h = import(aperture);
  network->pause();
  auto data = pattern(128 * 1024, 2);
  put(h, 0, data);
  network->resume();
  network->settle();
  EXPECT_TRUE(is_pattern(bytes(), 2, 0));
  const PlainCounters c = network->counters();
  EXPECT_GT(c.overtaking, 20u);
  EXPECT_EQ(c.placed_early, c.overtaking);
  EXPECT_EQ(c.held_back, 0u);
}

TEST_F(PlainLinkTest, TheSameSeedGivesTheSameOrder) {
  std::vector<std::uint64_t> overtaking;
  for (int run = 0; run < 2; ++run) {
    start(scrambled());
    auto aperture = share(128 * 1024);
    auto h = import(aperture);
    network->pause();
    put(h, 0, pattern(128 * 1024, 2));
    network->resume();
    network->settle();
    overtaking.push_back(network->counters().overtaking);
  }
  EXPECT_EQ(overtaking[0], overtaking[1]);
}

TEST_F(PlainLinkTest, OrderedPutsWaitForEverythingSentBefore) {
  PlainOptions options = scrambled();
  options.delay_us = 200;
  start(options);
  auto aperture = share(64 * 1024);
  auto h = import(aperture);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> looks{0};
  // A thread that sees the word sees the data, without any other synchronisation: this is what
  // rings do.
  std::thread consumer([&] {
    auto& word = *reinterpret_cast<std::atomic<std::uint64_t>*>(memory.back().data());
    auto& answer = *reinterpret_cast<std::atomic<std::uint64_t>*>(memory.back().data() + 8);
    for (std::uint64_t i = 1; i <= 60 && !stop.load(); ++i) {
      while (word.load(std::memory_order_acquire) != i && !stop.load()) std::this_thread::yield();
      EXPECT_TRUE(is_pattern(bytes().subspan(64, 20'000), i, 0)) << i;
      looks.fetch_add(1);
      answer.store(i, std::memory_order_release);
    }
  });
  for (std::uint64_t i = 1; i <= 60; ++i) {
    put(h, 64, pattern(20'000, i));
    put_word(h, 0, i);
    std::uint64_t answer = 0;
    while (answer != i) {
      if (!at_b->get(h, 8, std::as_writable_bytes(std::span(&answer, 1))).ok()) break;
    }
    if (HasFatalFailure()) break;
  }
  network->settle();
  stop.store(true);
  consumer.join();
  EXPECT_EQ(looks.load(), 60u);
  EXPECT_GT(network->counters().held_back, 0u);
}

TEST_F(PlainLinkTest, ALatePacketLeavesAloneWhatLaterOnesHavePlaced) {
  start(scrambled());
  auto aperture = share(8192);
  auto h = import(aperture);
  Random random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::byte> expected(bytes().begin(), bytes().end());
    network->pause();
    for (int i = 0; i < 30; ++i) {
      const std::size_t n = random.size_up_to(1400);
      const std::size_t at = random.below(8192 - n + 1);
      auto data = pattern(n, random.next());
      put(h, at, data, random.below(4) == 0 ? PutOrder::kAfterEarlier : PutOrder::kAny);
      std::copy(data.begin(), data.end(), expected.begin() + static_cast<std::ptrdiff_t>(at));
    }
    network->resume();
    network->settle();
    ASSERT_EQ(std::memcmp(bytes().data(), expected.data(), expected.size()), 0)
        << "round " << round;
  }
  EXPECT_GT(network->counters().trimmed, 100u);
}

TEST_F(PlainLinkTest, TripwiresFireInTheOrderSent) {
  start(scrambled());
  auto aperture = share(64 * 1024);
  auto h = import(aperture);
  for (std::uint64_t round = 1; round <= 30; ++round) {
    auto tripwire = must(Tripwire::create(aperture, 0, 8));
    tripwire.arm();
    network->pause();
    put(h, 64, pattern(40'000, round));
    put_word(h, 0, round, PutOrder::kAny);  // its data may come early, its tripwire must not
    network->resume();
    ASSERT_TRUE(tripwire.wait(10'000).ok());
    ASSERT_TRUE(is_pattern(bytes().subspan(64, 40'000), round, 0));
  }
}

TEST_F(PlainLinkTest, AReadSeesTheWritesBeforeIt) {
  start(scrambled());
  auto aperture = share(64 * 1024);
  auto h = import(aperture);
  std::vector<std::byte> seen(50'000);
  for (std::uint64_t round = 1; round <= 30; ++round) {
    put(h, 5, pattern(seen.size(), round));
    ASSERT_TRUE(at_b->get(h, 5, seen).ok());
    ASSERT_TRUE(is_pattern(seen, round, 0));
  }
}

class Waiter final : public engine::OobSink {
 public:
  std::function<void()> on_message;
  std::atomic<int> calls{0};
  void on_oob(const std::shared_ptr<nic::Link>&, const OobMessage&) override {
    on_message();
    calls.fetch_add(1);
  }
  void on_link_down(const std::shared_ptr<nic::Link>&) override {}
};

TEST_F(PlainLinkTest, TheDriverThreadCannotWaitForItself) {
  start({});
  auto aperture = share(4096);
  auto h = import(aperture);
  auto sink = std::make_shared<Waiter>();
  int get_err = 0, import_err = 0, quick_import_err = 0;
  std::uint64_t word;
  sink->on_message = [&] {
    get_err = at_b->get(h, 0, std::as_writable_bytes(std::span(&word, 1))).error().err;
    import_err = at_b->import(aperture.cookie(), true).error().err;
    auto quick = at_b->import(aperture.cookie(), false);
    quick_import_err = quick.ok() ? 0 : quick.error().err;
  };
  OobMessage m;
  m.to = must(b.core()->add_endpoint(sink));
  ASSERT_TRUE(at_a->send_oob(m).ok());
  network->settle();
  ASSERT_EQ(sink->calls.load(), 1);
  EXPECT_EQ(get_err, EDEADLK);
  EXPECT_EQ(import_err, EDEADLK);
  EXPECT_EQ(quick_import_err, 0);
}

TEST_F(PlainLinkTest, MoreTransfersThanAllowedAreBusy) {
  PlainOptions options;
  options.max_transfers = 2;
  start(options);
  auto aperture = share(4096);
  auto h = import(aperture);
  network->pause();
  std::byte local[16] = {};
  nic::Transfer t{RdmaOp::kWrite, &h, 0, local, 16, 1};
  using Kind = nic::TransferResult::Kind;
  EXPECT_EQ(at_b->transfer(t).kind, Kind::kPending);
  t.token = 2;
  EXPECT_EQ(at_b->transfer(t).kind, Kind::kPending);
  t.token = 3;
  EXPECT_EQ(at_b->transfer(t).kind, Kind::kBusy);
  at_b->cancel(1);
  EXPECT_EQ(at_b->transfer(t).kind, Kind::kPending);
  network->resume();
  network->settle();
  EXPECT_EQ(at_b->transfer(t).kind, Kind::kPending);
  network->settle();
}

TEST_F(PlainLinkTest, PacketsWithoutTheRightAreRefused) {
  start({});
  auto aperture = share(4096);
  auto other = must(Aperture::export_memory(a, memory.back(), 0, 64, Rights::kReadWrite));
  std::uint64_t refused = 0;
  auto h = import(aperture);
  auto expect_refused = [&](nic::RemoteHandle forged, std::uint64_t offset, const char* why) {
    at_b->release(h);  // forgets an earlier refusal
    h = import(aperture);
    put_word(forged, offset, ~std::uint64_t{0});
    network->settle();
    EXPECT_EQ(network->counters().refused, ++refused) << why;
  };
  auto forged = h;
  forged.aperture = other.cookie().aperture;
  forged.generation_wanted = other.cookie().generation;
  expect_refused(forged, 0, "the key of another aperture");
  forged = h;
  forged.generation_wanted += 2;
  expect_refused(forged, 0, "another generation");
  forged = h;
  forged.aperture = 0xffffffff;
  expect_refused(forged, 0, "no such aperture");
  forged = h;
  forged.length = 1 << 20;
  expect_refused(forged, 4090, "beyond its end");
  forged = h;
  forged.key_image ^= 1;
  expect_refused(forged, 0, "wrong key");
  EXPECT_EQ(std::count(bytes().begin(), bytes().end(), std::byte{0xff}), 0);
  // The refusal of our own aperture (the wrong key) is remembered until it is imported again.
  EXPECT_FALSE(at_b->put(h, 0, bytes().first(8), PutOrder::kAny).ok());
  EXPECT_FALSE(at_b->check(h).ok());
  at_b->release(h);
  put_word(import(aperture), 0, 1);
  network->settle();
  EXPECT_EQ(network->counters().refused, refused);
  EXPECT_EQ(bytes()[0], std::byte{1});
}

TEST_F(PlainLinkTest, MalformedPacketsAreCountedAndTheLinkGoesOn) {
  start({});
  auto aperture = share(4096);
  auto h = import(aperture);
  PlainPacket p;
  p.type = static_cast<Type>(99);
  at_b->forge(p);
  p.type = static_cast<Type>(0);
  at_b->forge(p);
  p = {};
  p.type = Type::kOob;
  p.oob.length = 10'000;
  at_b->forge(p);
  p = {};
  p.type = Type::kRead;
  p.length = ~std::uint64_t{0};
  at_b->forge(p);
  p = {};
  p.bytes.resize(100'000);
  at_b->forge(p);
  network->settle();
  EXPECT_EQ(network->counters().malformed, 5u);
  // Answers to questions nobody asked.
  for (Type type : {Type::kPutDone, Type::kReadData, Type::kReadRefused, Type::kImportDone}) {
    p = {};
    p.type = type;
    p.request = 12345;
    p.bytes.resize(type == Type::kReadData ? 64 : 0);
    at_a->forge(p);
  }
  network->settle();
  put_word(h, 8, 77);
  std::uint64_t seen = 0;
  ASSERT_TRUE(at_b->get(h, 8, std::as_writable_bytes(std::span(&seen, 1))).ok());
  EXPECT_EQ(seen, 77u);
}

TEST_F(PlainLinkTest, ReadDataThatWereNotAskedForGoNowhere) {
  start({});
  auto aperture = share(4096);
  auto h = import(aperture);
  std::vector<std::byte> local(64, std::byte{1});
  network->pause();
  nic::Transfer t{RdmaOp::kRead, &h, 0, local.data(), 32, 9};
  ASSERT_EQ(at_b->transfer(t).kind, nic::TransferResult::Kind::kPending);
  for (auto [offset, n] :
       {std::pair<std::uint64_t, std::size_t>{0, 33}, {30, 3}, {~std::uint64_t{0}, 8}}) {
    PlainPacket p;
    p.type = Type::kReadData;
    p.request = 1;
    p.offset = offset;
    p.bytes.assign(n, std::byte{2});
    at_a->forge(p);
  }
  network->resume();
  network->settle();
  EXPECT_EQ(network->counters().malformed, 3u);
  EXPECT_EQ(std::count(local.begin(), local.end(), std::byte{2}), 0);
}

TEST_F(PlainLinkTest, ACutLosesWhatIsUnderWay) {
  start({});
  auto aperture = share(4096);
  auto h = import(aperture);
  network->pause();
  put_word(h, 0, 1);
  network->cut();
  EXPECT_FALSE(at_a->alive());
  EXPECT_FALSE(at_b->alive());
  EXPECT_EQ(bytes()[0], std::byte{0});
  EXPECT_EQ(at_b->put(h, 0, bytes().first(8), PutOrder::kAny).error().err, ECONNRESET);
  EXPECT_EQ(a.counters().links, 0u);
}

TEST_F(PlainLinkTest, AContextCanEndAtAnyTime) {
  for (int round = 0; round < 30; ++round) {
    std::optional<Context> c = must(Context::create());
    std::optional<Context> d = must(Context::create());
    PlainOptions options = scrambled();
    options.delay_us = 20;
    PlainNetwork short_lived(options);
    short_lived.join(*c->core(), *d->core());
    auto listener = must(Listener::create(*c, ""));
    auto stream = must(Stream::connect(*d, listener.address(), 10'000));
    auto server = must(listener.accept(10'000));
    std::thread writer([&] {
      std::vector<std::byte> data(100'000);
      while (stream.send(data, 5000).ok()) {
      }
    });
    std::this_thread::sleep_for(std::chrono::microseconds(200 * (round % 5)));
    (round % 2 == 0 ? c : d).reset();
    writer.join();
  }
}

// An offer says "read it from my memory"; over a link that maps nothing there is no line to answer
// in.
TEST_F(PlainLinkTest, AnOfferOverAPacketLinkResetsThePeer) {
  start({});
  auto endpoint = must(MessageEndpoint::create(a));
  auto c = must(engine::Connection::connect(b.core(), at_b, endpoint.address().endpoint,
                                            engine::ConnectionKind::kMessages, {},
                                            deadline_after_ms(10'000)));
  std::vector<std::byte> message(50'000);
  auto aperture = must(Aperture::export_region(b, message, Rights::kRead));
  engine::OfferRecord offer{aperture.cookie(), 0, 0};
  std::byte* room = c->reserve(sizeof offer);
  ASSERT_NE(room, nullptr);
  std::memcpy(room, &offer, sizeof offer);
  c->commit(sizeof offer, engine::RecordType::kOffer);
  network->settle();
  std::vector<std::byte> buffer(50'000);
  PeerIndex gone = 99;
  for (int i = 0; i < 100 && !endpoint.take_departed(&gone); ++i) {
    EXPECT_FALSE(endpoint.try_recv(buffer).ok());
    network->settle();
  }
  EXPECT_EQ(gone, 0u);
  EXPECT_EQ(a.counters().hostile_peers, 1u);
}

}  // namespace
}  // namespace clan::test

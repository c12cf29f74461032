#include <clan/aperture.h>
#include <clan/tripwire.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "support/process.h"
#include "support/streams.h"

namespace clan {
namespace {

using namespace test;

TEST(Tripwire, FiresOnceWhenItsBytesAreWritten) {
  OwnerAndPeer c;
  auto memory = must(Memory::allocate(4096));
  auto a = must(Aperture::export_memory(c.owner, memory, 0, 4096, Rights::kReadWrite));
  auto r = must(RemoteAperture::import(c.peer, a.cookie()));
  auto t = must(Tripwire::create(a, 64, 64));
  std::uint64_t word = 1;
  ASSERT_OK(r.write(64, &word, 8));
  EXPECT_FALSE(t.test_and_clear());  // not armed
  t.arm();
  ASSERT_OK(r.write(0, &word, 8));
  ASSERT_OK(r.write(128, &word, 8));
  ASSERT_OK(r.read(64, &word, 8));
  EXPECT_FALSE(t.test_and_clear());
  ASSERT_OK(r.write(60, &word, 8));  // overlaps by four bytes
  EXPECT_TRUE(t.test_and_clear());
  EXPECT_FALSE(t.test_and_clear());
  ASSERT_OK(r.write(64, &word, 8));
  EXPECT_FALSE(t.test_and_clear());  // one shot
  t.arm();
  ASSERT_OK(r.publish(120, 1));
  EXPECT_OK(t.wait(5000));
  EXPECT_TRUE(t.test_and_clear());
  t.arm();
  t.disarm();
  ASSERT_OK(r.write(64, &word, 8));
  EXPECT_FALSE(t.test_and_clear());
}

TEST(Tripwire, FiresOnReadsOrEveryTimeWhenAskedTo) {
  OwnerAndPeer c;
  auto memory = must(Memory::allocate(4096));
  auto a = must(Aperture::export_memory(c.owner, memory, 0, 4096, Rights::kReadWrite));
  auto r = must(RemoteAperture::import(c.peer, a.cookie()));
  auto on_read = must(Tripwire::create(a, 0, 8, {.on_write = false, .on_read = true}));
  auto every = must(Tripwire::create(a, 0, 8, {.persistent = true}));
  on_read.arm();
  every.arm();
  std::uint64_t word = 1;
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(r.write(0, &word, 8));
    EXPECT_TRUE(every.test_and_clear());
    EXPECT_FALSE(on_read.test_and_clear());
  }
  ASSERT_OK(r.read(0, &word, 8));
  EXPECT_TRUE(on_read.test_and_clear());
  EXPECT_FALSE(every.test_and_clear());
}

TEST(Tripwire, RefusesWhatMakesNoSense) {
  OwnerAndPeer c;
  auto memory = must(Memory::allocate(4096));
  auto a = must(Aperture::export_memory(c.owner, memory, 0, 4096, Rights::kReadWrite));
  EXPECT_ERR(Tripwire::create(a, 0, 0), ERANGE);
  EXPECT_ERR(Tripwire::create(a, 4090, 8), ERANGE);
  EXPECT_ERR(Tripwire::create(a, ~std::uint64_t{0}, 8), ERANGE);
  EXPECT_ERR(Tripwire::create(a, 0, 8, {.on_write = false, .on_read = false}), EINVAL);
  auto t = must(Tripwire::create(a, 0, 8));
  EXPECT_ERR(t.wait(20), ETIMEDOUT);
  EXPECT_EQ(c.owner.counters().tripwires, 1u);
}

TEST(Tripwire, PostsEvents) {
  OwnerAndPeer c;
  auto memory = must(Memory::allocate(4096));
  auto a = must(Aperture::export_memory(c.owner, memory, 0, 4096, Rights::kReadWrite));
  auto r = must(RemoteAperture::import(c.peer, a.cookie()));
  auto queue = must(EventQueue::create(c.owner));
  std::vector<Tripwire> tripwires;
  for (std::uint64_t i = 0; i < 64; ++i) {
    tripwires.push_back(must(Tripwire::create(a, i * 64, 64)));
    ASSERT_OK(tripwires.back().register_with(queue, i));
    tripwires.back().arm();
  }
  std::uint64_t word = 1;
  for (std::uint64_t i : {63u, 0u, 17u}) ASSERT_OK(r.write(i * 64, &word, 8));
  Event e[8];
  std::uint64_t seen = 0;
  for (std::size_t n; (n = queue.poll(e)) > 0;) {
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(e[i].kind, EventKind::kTripwire);
      seen |= std::uint64_t{1} << e[i].tag;
    }
  }
  EXPECT_EQ(seen, (std::uint64_t{1} << 63) | 1u | (1u << 17));
}

TEST(Tripwire, OfARevokedApertureHasNoHoldOnItsSuccessor) {
  OwnerAndPeer c;
  std::vector<std::byte> own(4096);
  std::optional<Aperture> first = must(Aperture::export_region(c.owner, own, Rights::kReadWrite));
  std::optional<Tripwire> old = must(Tripwire::create(*first, 0, 8));
  ASSERT_OK(first->revoke());
  auto second = must(Aperture::export_region(c.owner, own, Rights::kReadWrite));
  auto fresh = must(Tripwire::create(second, 0, 8));
  fresh.arm();
  old->disarm();
  EXPECT_FALSE(old->test_and_clear());
  old.reset();
  first.reset();
  auto r = must(RemoteAperture::import(c.peer, second.cookie()));
  const std::uint64_t word = 1;
  ASSERT_OK(r.write(0, &word, 8));
  EXPECT_TRUE(fresh.test_and_clear());
}

TEST(Tripwire, LosesNoWakeUp) {
  OwnerAndPeer c;
  auto memory = must(Memory::allocate(4096));
  auto a = must(Aperture::export_memory(c.owner, memory, 0, 4096, Rights::kReadWrite));
  auto r = must(RemoteAperture::import(c.peer, a.cookie()));
  auto t = must(Tripwire::create(a, 0, 8));
  auto& word = *reinterpret_cast<std::atomic<std::uint64_t>*>(a.region().data());
  auto& turn = *reinterpret_cast<std::atomic<std::uint64_t>*>(a.region().data() + 2048);
  constexpr std::uint64_t kTurns = 3000;
  std::thread writer([&] {
    for (std::uint64_t i = 1; i <= kTurns; ++i) {
      ASSERT_OK(r.publish(0, i));
      while (turn.load() < i) std::this_thread::yield();
    }
  });
  for (std::uint64_t i = 1; i <= kTurns; ++i) {
    while (word.load(std::memory_order_acquire) < i) {
      t.arm();
      if (word.load(std::memory_order_acquire) >= i) break;
      ASSERT_OK(t.wait(10'000));
    }
    turn.store(i);
  }
  writer.join();
}

TEST(Tripwire, WatchesForThePeersDeath) {
  for (bool with_events : {false, true}) {
    Shared<RdmaCookie> shared;
    RdmaCookie& cookie = *shared;
    Gate known;
    auto child = Process::start([&] {
      auto context = must(Context::create());
      auto memory = must(Memory::allocate(4096));
      auto a = must(Aperture::export_memory(context, memory, 0, 4096, Rights::kReadWrite));
      cookie = a.cookie();
      known.open();
      ::pause();
      return 0;
    });
    auto context = must(Context::create());
    auto memory = must(Memory::allocate(4096));
    auto a = must(Aperture::export_memory(context, memory, 0, 4096, Rights::kReadWrite));
    ASSERT_TRUE(known.wait());
    auto r = must(RemoteAperture::import(context, cookie));
    auto t = must(Tripwire::create(a, 0, 8));
    ASSERT_OK(t.watch(r));
    auto queue = must(EventQueue::create(context));
    if (with_events) {
      ASSERT_OK(t.register_with(queue, 3));
    }
    t.arm();
    EXPECT_ERR(t.wait(20), ETIMEDOUT);
    child.kill();
    if (with_events) {
      Event e[1];
      ASSERT_OK(queue.wait(e, 5000));
      EXPECT_EQ(e[0].tag, 3u);
    } else {
      EXPECT_OK(t.wait(5000));
    }
    EXPECT_TRUE(t.test_and_clear());
    EXPECT_ERR(r.check(), ECONNRESET);
    std::uint64_t word = 1;
    if (!with_events) {
      EXPECT_OK(t.watch(r));  // gone already: fires at once
    }
    EXPECT_EQ(t.test_and_clear(), !with_events);
    (void)r.write(0, &word, 8);  // memory of the dead: harmless
  }
}

}  // namespace
}  // namespace clan

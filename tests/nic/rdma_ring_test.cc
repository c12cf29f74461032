// The two ends of an RDMA ring: what they accept, what they refuse, and the doorbell between them.
#include "nic/rdma_ring.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "nic/rdma_ring_app.h"
#include "nic/rdma_ring_driver.h"

namespace clan::nic {
namespace {

using Take = RdmaRingDriver::Take;

struct alignas(64) Line {
  std::byte bytes[64];
};

struct Ring {
  explicit Ring(std::uint32_t capacity, std::uint32_t completions = 0)
      : memory(RdmaRing::bytes_needed(capacity, completions ? completions : capacity) / 64 + 1),
        driver(
            std::move(RdmaRingDriver::create(span(), capacity, completions ? completions : capacity)
                          .value())),
        app(std::move(RdmaRingApp::open(span()).value())) {}

  std::span<std::byte> span() { return std::as_writable_bytes(std::span(memory)); }
  RdmaRingHeader& header() { return *reinterpret_cast<RdmaRingHeader*>(memory.data()); }
  std::atomic<std::uint64_t>& word(std::uint64_t slot, unsigned w) {
    return reinterpret_cast<RdmaRequestSlot*>(&header() + 1)[slot].word[w];
  }
  /// Takes one and answers it.
  Take serve(RdmaTaken* t) {
    const Take r = driver.take(t);
    if (r == Take::kTaken)
      driver.complete({t->request.cookie, t->error, t->error ? 0 : t->request.length});
    return r;
  }
  std::vector<RdmaCompletion> reap(std::size_t n = 1000) {
    std::vector<RdmaCompletion> out(n);
    const auto got = app.reap(out);
    EXPECT_TRUE(got.ok());
    out.resize(got.ok() ? got.value() : 0);
    return out;
  }

  std::vector<Line> memory;
  RdmaRingDriver driver;
  RdmaRingApp app;
};

RdmaRequest request(std::uint64_t cookie, std::uint64_t length = 100) {
  RdmaRequest r;
  r.local = reinterpret_cast<void*>(std::uintptr_t{0x10000});
  r.length = length;
  r.cookie = cookie;
  return r;
}

TEST(RdmaRing, CarriesEveryFieldOfARequest) {
  Ring ring(4);
  RdmaRequest r;
  r.op = RdmaOp::kRead;
  r.priority = 7;
  r.more = true;
  r.local = reinterpret_cast<void*>(std::uintptr_t{0x7fff12345678});
  r.remote_offset = 0x123456789abcdef0;
  r.length = 0x0fedcba987654321;
  r.remote = 0xfedcba98;
  r.cookie = ~0ull;
  ASSERT_TRUE(ring.app.post(r).ok());
  RdmaTaken t;
  ASSERT_EQ(ring.driver.take(&t), Take::kTaken);
  EXPECT_EQ(t.error, 0);
  EXPECT_EQ(t.request.op, r.op);
  EXPECT_EQ(t.request.priority, r.priority);
  EXPECT_EQ(t.request.more, r.more);
  EXPECT_EQ(t.request.local, r.local);
  EXPECT_EQ(t.request.remote_offset, r.remote_offset);
  EXPECT_EQ(t.request.length, r.length);
  EXPECT_EQ(t.request.remote, r.remote);
  EXPECT_EQ(t.request.cookie, r.cookie);
}

TEST(RdmaRing, CarriesEveryFieldOfACompletion) {
  Ring ring(4);
  ASSERT_TRUE(ring.app.post(request(1)).ok());
  RdmaTaken t;
  ASSERT_EQ(ring.driver.take(&t), Take::kTaken);
  ring.driver.complete({0xabcdef0123456789, EFAULT, 1ull << 50});
  const auto c = ring.reap();
  ASSERT_EQ(c.size(), 1u);
  EXPECT_EQ(c[0].cookie, 0xabcdef0123456789u);
  EXPECT_EQ(c[0].status, EFAULT);
  EXPECT_EQ(c[0].bytes, 1ull << 50);
}

TEST(RdmaRing, RefusesMemoryThatIsTooSmallOrMisaligned) {
  std::vector<Line> memory(64);
  const auto bytes = std::as_writable_bytes(std::span(memory));
  const std::size_t need = RdmaRing::bytes_needed(8);
  EXPECT_TRUE(RdmaRingDriver::create(bytes.first(need), 8).ok());
  EXPECT_TRUE(RdmaRingApp::open(bytes.first(need)).ok());
  EXPECT_FALSE(RdmaRingApp::open(bytes.first(need - 1)).ok());
  EXPECT_FALSE(RdmaRingApp::open(bytes.first(16)).ok());
  EXPECT_FALSE(RdmaRingDriver::create(bytes.first(need - 1), 8).ok());
  EXPECT_FALSE(RdmaRingDriver::create(bytes.subspan(8), 8).ok());
}

TEST(RdmaRing, RefusesCapacitiesThatAreNoPowerOfTwoOrTooFewCompletions) {
  std::vector<Line> memory(4096);
  const auto bytes = std::as_writable_bytes(std::span(memory));
  for (auto [c, k] : {std::pair{0u, 0u}, {3u, 4u}, {4u, 6u}, {8u, 4u}, {1u << 17, 1u << 17}})
    EXPECT_FALSE(RdmaRingDriver::create(bytes, c, k).ok()) << c << " " << k;
  EXPECT_TRUE(RdmaRingDriver::create(bytes, 1, 1).ok());
}

TEST(RdmaRing, ApplicationRefusesAForeignHeader) {
  Ring ring(4);
  ring.header().magic ^= 1;
  EXPECT_EQ(RdmaRingApp::open(ring.span()).error().err, EPROTO);
  ring.header().magic ^= 1;
  ring.header().capacity = 1u << 15;
  EXPECT_FALSE(RdmaRingApp::open(ring.span()).ok());
}

TEST(RdmaRing, KeepsOrderOverManyTimesItsCapacity) {
  Ring ring(8, 16);
  std::uint64_t posted = 0, taken = 0, reaped = 0;
  for (int round = 0; round < 1000; ++round) {
    for (int n = round % 9; n > 0; --n)
      if (ring.app.post(request(posted, posted + 1)).ok()) ++posted;
    RdmaTaken t;
    for (int n = round % 7; n > 0 && ring.serve(&t) == Take::kTaken; --n) {
      EXPECT_EQ(t.request.cookie, taken);
      EXPECT_EQ(t.request.length, ++taken);
    }
    for (const auto& c : ring.reap(static_cast<std::size_t>(round % 5)))
      EXPECT_EQ(c.cookie, reaped++);
  }
  EXPECT_GT(reaped, 1000u);
}

TEST(RdmaRing, IsFullAtItsCapacityAndNotBefore) {
  Ring ring(4, 8);
  for (unsigned i = 0; i < 4; ++i) EXPECT_TRUE(ring.app.post(request(i)).ok());
  EXPECT_EQ(ring.app.post(request(4)).error().err, EAGAIN);
  RdmaTaken t;
  ASSERT_EQ(ring.serve(&t), Take::kTaken);
  EXPECT_TRUE(ring.app.post(request(4)).ok());
  EXPECT_EQ(ring.app.post(request(5)).error().err, EAGAIN);
}

TEST(RdmaRing, PostsAGroupAsAWholeOrNotAtAll) {
  Ring ring(4);
  const std::array three{request(1), request(2), request(3)};
  ASSERT_TRUE(ring.app.post_group(three).ok());
  EXPECT_EQ(ring.app.post_group(three).error().err, EAGAIN);
  EXPECT_EQ(ring.app.post_group(std::vector(5, request(1))).error().err, EMSGSIZE);
  RdmaTaken t;
  std::vector<bool> more;
  while (ring.driver.take(&t) == Take::kTaken) more.push_back(t.request.more);
  EXPECT_EQ(more, (std::vector<bool>{true, true, false}));
}

TEST(RdmaRing, ApplicationMustReapBeforeItPostsMoreThanCompletionsFit) {
  Ring ring(4, 8);
  RdmaTaken t;
  for (unsigned i = 0; i < 8; ++i) {
    ASSERT_TRUE(ring.app.post(request(i)).ok());
    ASSERT_EQ(ring.serve(&t), Take::kTaken);
  }
  EXPECT_EQ(ring.app.post(request(8)).error().err, EAGAIN);
  EXPECT_EQ(ring.reap(1).size(), 1u);
  EXPECT_TRUE(ring.app.post(request(8)).ok());
}

TEST(RdmaRing, DriverTakesNothingWithoutASlotForItsCompletion) {
  Ring ring(4, 4);
  RdmaTaken t;
  for (unsigned i = 0; i < 4; ++i) {
    ASSERT_TRUE(ring.app.post(request(i)).ok());
    ASSERT_EQ(ring.driver.take(&t), Take::kTaken);
  }
  ring.header().request_tail.store(5);  // an application that does not count
  EXPECT_EQ(ring.driver.take(&t), Take::kNoCompletionSlot);
  ring.driver.complete({0, 0, 0});
  EXPECT_EQ(ring.driver.take(&t), Take::kNoCompletionSlot);  // published, not reaped
  EXPECT_EQ(ring.reap().size(), 1u);
  EXPECT_EQ(ring.driver.take(&t), Take::kTaken);
}

TEST(RdmaRing, DriverRefusesImpossibleIndices) {
  for (std::uint64_t tail : {std::uint64_t{1}, std::uint64_t{7}, ~std::uint64_t{0}}) {
    Ring ring(4);
    RdmaTaken t;
    ASSERT_TRUE(ring.app.post(std::vector(2, request(1))).ok());
    ASSERT_EQ(ring.serve(&t), Take::kTaken);
    ASSERT_EQ(ring.serve(&t), Take::kTaken);
    ring.header().request_tail.store(tail);  // backwards, too far, nonsense
    EXPECT_EQ(ring.driver.take(&t), Take::kCorrupt) << tail;
    EXPECT_EQ(ring.driver.taken(), 2u);
  }
  for (std::uint64_t head : {std::uint64_t{5}, ~std::uint64_t{0}}) {
    Ring ring(4);
    RdmaTaken t;
    ASSERT_TRUE(ring.app.post(std::vector(4, request(1))).ok());
    while (ring.serve(&t) == Take::kTaken) {
    }
    ring.header().completion_head.store(head);  // more than was ever completed
    ring.header().request_tail.store(5);
    EXPECT_EQ(ring.driver.take(&t), Take::kCorrupt) << head;
  }
}

TEST(RdmaRing, DriverNeverReadsWhatItWrites) {
  Ring ring(4);
  RdmaTaken t;
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(ring.app.post(request(i)).ok());
    std::memset(static_cast<void*>(&ring.header()), 0x5a, 64);  // magic and capacities
    ring.header().completion_tail.store(~0ull);
    ring.header().idle_epoch.store(~0ull);
    ASSERT_EQ(ring.serve(&t), Take::kTaken);
    EXPECT_EQ(t.request.cookie, i);
    ASSERT_EQ(ring.reap().size(), 1u);
    ring.header().request_head.store(i);  // behind by one: only the application reads it
  }
}

TEST(RdmaRing, DriverRefusesMalformedFieldsAndKeepsTheCookie) {
  struct Case {
    unsigned word;
    std::uint64_t value;
  };
  const Case cases[] = {
      {0, 2},                  // op
      {0, 0xff},               // op
      {0, 8u << 8},            // priority
      {0, 1u << 17},           // bits that must be zero
      {0, 1u << 31},           //
      {1, ~std::uint64_t{0}},  // local + length wraps
      {2, ~std::uint64_t{0}},  // remote_offset + length wraps
      {3, ~std::uint64_t{0}},  // both
  };
  for (const Case& c : cases) {
    Ring ring(4);
    ASSERT_TRUE(ring.app.post(request(77)).ok());
    ring.word(0, c.word).store(c.value);
    RdmaTaken t;
    ASSERT_EQ(ring.driver.take(&t), Take::kTaken);
    EXPECT_EQ(t.error, EINVAL) << c.word << " " << c.value;
    EXPECT_EQ(t.request.cookie, 77u);
    EXPECT_LT(t.request.priority, kRdmaPriorities);
  }
}

TEST(RdmaRing, ApplicationRefusesImpossibleIndices) {
  Ring ring(4, 8);
  ring.header().completion_tail.store(9);
  std::array<RdmaCompletion, 4> out;
  EXPECT_EQ(ring.app.reap(out).error().err, EPROTO);
  ASSERT_TRUE(ring.app.post(std::vector(4, request(1))).ok());
  ring.header().request_head.store(5);
  EXPECT_EQ(ring.app.post(request(1)).error().err, EPROTO);
}

TEST(RdmaRing, RingsOncePerIdlePeriod) {
  Ring ring(8);
  RdmaTaken t;
  EXPECT_TRUE(ring.app.post(request(1)).value());   // new rings are idle
  EXPECT_FALSE(ring.app.post(request(2)).value());  // rung already
  ring.driver.leave_idle();
  EXPECT_FALSE(ring.app.post(request(3)).value());  // awake
  while (ring.serve(&t) == Take::kTaken) {
  }
  EXPECT_TRUE(ring.driver.go_idle());
  EXPECT_TRUE(ring.app.post(request(4)).value());
  EXPECT_FALSE(ring.app.post(request(5)).value());
}

TEST(RdmaRing, DoesNotGoIdleWithARequestInTheRing) {
  Ring ring(8);
  RdmaTaken t;
  ring.driver.leave_idle();
  ASSERT_EQ(ring.driver.take(&t), Take::kEmpty);
  EXPECT_FALSE(ring.app.post(request(1)).value());  // no doorbell: the driver is looking
  EXPECT_FALSE(ring.driver.go_idle());
  EXPECT_FALSE(ring.driver.idle());
  EXPECT_EQ(ring.driver.take(&t), Take::kTaken);
}

TEST(RdmaRing, ApplicationHearsThatServiceHasEnded) {
  Ring ring(4);
  ring.driver.publish_state(RdmaRingState::kBroken);
  EXPECT_EQ(ring.app.post(request(1)).error().err, EPROTO);
  ring.driver.publish_state(RdmaRingState::kClosed);
  EXPECT_EQ(ring.app.post(request(1)).error().err, EPIPE);
}

TEST(RdmaRing, OpeningAgainContinuesWhereTheLastEndStopped) {
  Ring ring(4);
  RdmaTaken t;
  for (std::uint64_t i = 0; i < 11; ++i) {
    ring.app = std::move(RdmaRingApp::open(ring.span()).value());
    ASSERT_TRUE(ring.app.post(request(i)).ok());
    ASSERT_EQ(ring.serve(&t), Take::kTaken);
    ring.app = std::move(RdmaRingApp::open(ring.span()).value());
    const auto c = ring.reap();
    ASSERT_EQ(c.size(), 1u);
    EXPECT_EQ(c[0].cookie, i);
  }
}

// Poster, reaper and driver in three threads; the driver sleeps whenever it is idle and only the
// doorbell wakes it. A lost doorbell ends the test at its deadline.
TEST(RdmaRing, ThreadsLoseNeitherRequestsNorDoorbells) {
  constexpr std::uint64_t kRequests = 60000;
  Ring ring(16, 32);
  std::atomic<std::uint64_t> bells{0};
  std::atomic<bool> late{false};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto pause = [&] {
    std::this_thread::yield();
    if (std::chrono::steady_clock::now() > deadline) late = true;
  };

  std::thread poster([&] {
    for (std::uint64_t i = 0; i < kRequests && !late;) {
      const auto r = ring.app.post(request(i, i * 3));
      if (!r.ok()) {
        pause();
        continue;
      }
      if (r.value()) bells.fetch_add(1);
      if (++i % 64 == 0) pause();  // let the driver fall asleep at times
    }
  });
  std::thread reaper([&] {
    std::array<RdmaCompletion, 8> out;
    for (std::uint64_t next = 0; next < kRequests && !late;) {
      const std::size_t n = ring.app.reap(out).value();
      for (std::size_t i = 0; i < n; ++i, ++next) {
        EXPECT_EQ(out[i].cookie, next);
        EXPECT_EQ(out[i].bytes, next * 3);
      }
      if (n == 0) pause();
    }
  });
  std::uint64_t heard = 0, sleeps = 0;
  for (std::uint64_t served = 0; served < kRequests && !late;) {
    RdmaTaken t;
    if (ring.serve(&t) == Take::kTaken) {
      EXPECT_EQ(t.request.cookie, served++);
      continue;
    }
    if (!ring.driver.go_idle()) continue;
    ++sleeps;
    while (bells.load() == heard && served < kRequests && !late) pause();
    heard = bells.load();
    ring.driver.leave_idle();
  }
  poster.join();
  reaper.join();
  EXPECT_FALSE(late);
  EXPECT_GT(sleeps, 0u);
}

// Plain data, in the buffers that the requests name: a thread that sees a request or its completion
// sees what the other end wrote there before. For ThreadSanitizer.
TEST(RdmaRing, PublishesWhatIsInTheBuffersOfItsRequests) {
  constexpr std::uint64_t kRequests = 5000, kBuffers = 16;
  Ring ring(kBuffers, kBuffers);
  std::array<std::uint64_t, kBuffers> buffers{};
  std::thread driver([&] {
    for (std::uint64_t served = 0; served < kRequests;) {
      RdmaTaken t;
      if (ring.driver.take(&t) != Take::kTaken) {
        std::this_thread::yield();
        continue;
      }
      auto& buffer = *static_cast<std::uint64_t*>(t.request.local);
      EXPECT_EQ(buffer, served);
      buffer = 2 * served++;
      ring.driver.complete({t.request.cookie, 0, 8});
    }
  });
  std::uint64_t posted = 0, done = 0;
  while (done < kRequests) {
    while (posted < kRequests && posted - done < kBuffers) {
      buffers[posted % kBuffers] = posted;
      RdmaRequest r = request(posted, 8);
      r.local = &buffers[posted % kBuffers];
      if (!ring.app.post(r).ok()) break;
      ++posted;
    }
    std::array<RdmaCompletion, 4> out;
    const std::size_t n = ring.app.reap(out).value();
    for (std::size_t i = 0; i < n; ++i, ++done) EXPECT_EQ(buffers[done % kBuffers], 2 * done);
    if (n == 0) std::this_thread::yield();
  }
  driver.join();
}

}  // namespace
}  // namespace clan::nic

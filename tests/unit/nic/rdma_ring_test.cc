// An RDMA ring: its order, its bounds, and what each position says of what was written before.
#include "nic/rdma_ring.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "support/backoff.h"
#include "support/hand_over.h"

namespace clan::nic {
namespace {

RdmaRequest request(std::uint64_t cookie) {
  RdmaRequest r;
  r.cookie = cookie;
  r.length = 3 * cookie;
  return r;
}

/// Takes one and answers it. False: there is none.
bool serve(RdmaRing& ring) {
  RdmaRequest r;
  if (!ring.take(&r)) return false;
  ring.complete({r.cookie, 0, r.length});
  return true;
}

TEST(RdmaRing, TakesPowersOfTwo) {
  for (std::uint32_t depth : {1u, 2u, 256u, 1u << 16}) EXPECT_TRUE(RdmaRing::valid_depth(depth));
  for (std::uint32_t depth : {0u, 3u, 6u, 1u << 17}) EXPECT_FALSE(RdmaRing::valid_depth(depth));
}

TEST(RdmaRing, KeepsOrderOverManyTimesItsDepth) {
  RdmaRing ring(8);
  std::uint64_t posted = 0, reaped = 0;
  for (int round = 0; round < 1000; ++round) {
    for (int n = round % 9; n > 0; --n) posted += ring.post(request(posted)) ? 1 : 0;
    for (int n = round % 7; n > 0 && serve(ring); --n) {
    }
    std::array<RdmaCompletion, 5> out;
    const std::size_t n = ring.reap(std::span(out).first(static_cast<std::size_t>(round % 5)));
    for (std::size_t i = 0; i < n; ++i, ++reaped) {
      EXPECT_EQ(out[i].cookie, reaped);
      EXPECT_EQ(out[i].bytes, 3 * reaped);
    }
  }
  EXPECT_GT(reaped, 1000u);
}

TEST(RdmaRing, IsFullUntilCompletionsAreReaped) {
  RdmaRing ring(4);
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(ring.post(request(i)));
  EXPECT_FALSE(ring.post(request(4)));
  while (serve(ring)) {
  }
  EXPECT_FALSE(ring.post(request(4)));  // completed, not reaped
  RdmaCompletion one;
  EXPECT_EQ(ring.reap({&one, 1}), 1u);
  EXPECT_TRUE(ring.post(request(4)));
  EXPECT_FALSE(ring.post(request(5)));
}

// Plain data, in the buffers that the requests name: a thread that sees a request or its completion
// sees what the other one wrote there before. For ThreadSanitizer.
TEST(RdmaRing, PublishesWhatIsInTheBuffersOfItsRequests) {
  constexpr std::uint64_t kRequests = 20'000, kBuffers = 16;
  RdmaRing ring(kBuffers);
  std::array<std::uint64_t, kBuffers> buffers{};
  std::thread driver([&] {
    test::Backoff backoff;
    for (std::uint64_t served = 0; served < kRequests;) {
      RdmaRequest r;
      if (!ring.take(&r)) {
        backoff.wait();
        continue;
      }
      backoff.reset();
      auto& buffer = *static_cast<std::uint64_t*>(r.local);
      EXPECT_EQ(buffer, served);
      buffer = 2 * served++;
      ring.complete({r.cookie, 0, 8});
    }
  });
  test::Backoff backoff;
  for (std::uint64_t posted = 0, done = 0; done < kRequests;) {
    while (posted < kRequests && posted - done < kBuffers) {
      buffers[posted % kBuffers] = posted;
      RdmaRequest r = request(posted);
      r.local = &buffers[posted % kBuffers];
      EXPECT_TRUE(ring.post(r));
      ++posted;
    }
    std::array<RdmaCompletion, 4> out;
    const std::size_t n = ring.reap(out);
    for (std::size_t i = 0; i < n; ++i, ++done) EXPECT_EQ(buffers[done % kBuffers], 2 * done);
    n == 0 ? backoff.wait() : backoff.reset();
  }
  driver.join();
}

TEST(RdmaRing, ASlotIsReservedBehindWhatItsReaperHasRead) {
  RdmaRing ring(1);
  ASSERT_TRUE(ring.post(request(0)));
  ASSERT_TRUE(serve(ring));
  std::uint64_t data = 0;
  test::hand_over(
      [&] {
        RdmaCompletion one;
        data = 7;
        EXPECT_EQ(ring.reap({&one, 1}), 1u);
      },
      [&] {
        EXPECT_TRUE(ring.post(request(1)));
        EXPECT_EQ(data, 7u);
      });
}

}  // namespace
}  // namespace clan::nic

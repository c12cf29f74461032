// What each index of an RDMA ring tells the other end: plain data that one end has written before,
// under ThreadSanitizer. tests/orders weakens the orders one at a time; that the doorbell is not
// lost is in rdma_ring_test.cc.
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "nic/rdma_ring_app.h"
#include "nic/rdma_ring_driver.h"
#include "support/hand_over.h"

namespace clan::nic::order {
namespace {

using Take = RdmaRingDriver::Take;

struct alignas(64) Line {
  std::byte bytes[64];
};

struct Ring {
  Ring(std::uint32_t capacity, std::uint32_t completions)
      : memory(RdmaRing::bytes_needed(capacity, completions) / 64 + 1),
        driver(std::move(RdmaRingDriver::create(span(), capacity, completions).value())),
        app(std::move(RdmaRingApp::open(span()).value())) {}

  std::span<std::byte> span() { return std::as_writable_bytes(std::span(memory)); }
  bool posts() { return app.post(RdmaRequest{}).ok(); }
  bool takes() {
    RdmaTaken taken;
    return driver.take(&taken) == Take::kTaken;
  }
  void reap() {
    RdmaCompletion done;
    EXPECT_EQ(app.reap(std::span(&done, 1)).value(), 1u);
  }

  std::vector<Line> memory;
  RdmaRingDriver driver;
  RdmaRingApp app;
};

/// What `first` has written before is there for `second`, by what they do to the ring alone.
template <typename First, typename Second>
void hand_over(First&& first, Second&& second) {
  std::uint64_t data = 0;
  test::hand_over([&] { data = 7, first(); },
                  [&] {
                    second();
                    EXPECT_EQ(data, 7u);
                  });
}

TEST(RdmaRingOrder, ASlotIsWrittenOverBehindWhatItsTakerHasRead) {
  Ring ring(1, 2);
  ASSERT_TRUE(ring.posts());
  hand_over([&] { EXPECT_TRUE(ring.takes()); }, [&] { EXPECT_TRUE(ring.posts()); });
}

TEST(RdmaRingOrder, ACompletionSlotIsReservedBehindWhatItsReaperHasRead) {
  Ring ring(1, 1);
  ASSERT_TRUE(ring.posts());
  ASSERT_TRUE(ring.takes());
  ring.driver.complete({});
  hand_over([&] { ring.reap(); }, [&] { EXPECT_TRUE(ring.posts()); });
}

TEST(RdmaRingOrder, TheDriverTakesBehindWhatTheReaperHasRead) {
  Ring ring(1, 1);
  ASSERT_TRUE(ring.posts());
  ASSERT_TRUE(ring.takes());
  ring.driver.complete({});
  // A second request stands there all the same: the application may scribble on its index.
  auto& header = *reinterpret_cast<RdmaRingHeader*>(ring.memory.data());
  header.request_tail.store(2, std::memory_order_relaxed);
  hand_over([&] { ring.reap(); }, [&] { EXPECT_TRUE(ring.takes()); });
}

TEST(RdmaRingOrder, OneThatPostsSeesThatTheDriverSleepsAndWhatItDidBefore) {
  Ring ring(2, 2);
  ring.driver.leave_idle();
  hand_over([&] { EXPECT_TRUE(ring.driver.go_idle()); },
            [&] { EXPECT_TRUE(ring.app.post(RdmaRequest{}).value()); });
}

TEST(RdmaRingOrder, OneThatPostsSeesThatTheDriverIsAwakeAndWhatItDidBefore) {
  Ring ring(2, 2);
  hand_over([&] { ring.driver.leave_idle(); },
            [&] { EXPECT_FALSE(ring.app.post(RdmaRequest{}).value()); });
}

TEST(RdmaRingOrder, ADriverThatIsAboutToSleepSeesWhatIsBehindTheRequestItFinds) {
  Ring ring(2, 2);
  ring.driver.leave_idle();
  hand_over([&] { EXPECT_TRUE(ring.posts()); }, [&] { EXPECT_FALSE(ring.driver.go_idle()); });
}

TEST(RdmaRingOrder, OneThatFindsTheEndOfServiceSeesWhatCameBefore) {
  Ring ring(2, 2);
  hand_over([&] { ring.driver.publish_state(RdmaRingState::kClosed); },
            [&] { EXPECT_EQ(ring.app.state(), RdmaRingState::kClosed); });
}

}  // namespace
}  // namespace clan::nic::order

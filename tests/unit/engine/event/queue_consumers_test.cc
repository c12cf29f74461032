// What a consumer that leaves with events in hand tells one that is about to sleep: plain data,
// under ThreadSanitizer. Interleavings: queue_consumers_model_test.cc.
#include "engine/event/queue_consumers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "shm/nic_memory.h"
#include "support/hand_over.h"

namespace clan::engine {
namespace {

constexpr auto kNoLane = [](const auto&) { return true; };

TEST(QueueConsumerOrder, WhatIsLeftInHandIsSeenByOneThatIsAboutToSleep) {
  std::atomic<std::uint64_t> pending{5};
  std::uint64_t base = 0;
  test::hand_over(
      [&] {
        base = 64;
        hand_on_events(kNoLane, pending, [](auto&, std::uint32_t) {});
      },
      [&] {
        std::uint32_t word = 0;
        EXPECT_FALSE(prepare_consumer(kNoLane, pending, shm::kSleepsOnFutex, &word));
        EXPECT_EQ(base, 64u);
      });
}

TEST(QueueConsumerOrder, WhatWasDoneBeforeThereIsADescriptorIsSeenByOneThatIsAboutToSleep) {
  std::atomic<std::uint64_t> pending{0};
  std::atomic<int> fd{-1};
  int made = 0;
  test::hand_over(
      [&] {
        made = 1;
        publish_queue_fd(kNoLane, fd, 7, [](auto&, std::uint32_t) {});
      },
      [&] {
        std::uint32_t word = 0;
        EXPECT_FALSE(prepare_on_futex(
            kNoLane, pending, fd, [] {}, &word));
        EXPECT_EQ(made, 1);
      });
}

TEST(QueueConsumerOrder, OneThatWakesASleeperSeesWhatItDidBefore) {
  auto queue = std::make_unique<shm::EventQueueMemory>();
  const auto lane = [&](const auto& look) { return look(*queue); };
  std::atomic<std::uint64_t> pending{0};
  std::uint64_t data = 0;
  std::uint32_t woken = shm::kAwake;
  test::hand_over(
      [&] {
        data = 7;
        std::uint32_t word = 0;
        EXPECT_TRUE(prepare_consumer(lane, pending, shm::kSleepsOnFd, &word));
      },
      [&] {
        wake_consumers(lane, [&](auto&, std::uint32_t how) { woken = how; });
        EXPECT_EQ(woken, shm::kSleepsOnFd);
        EXPECT_EQ(data, 7u);
      });
}

}  // namespace
}  // namespace clan::engine

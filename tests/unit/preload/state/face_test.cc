// The words that both ends of a pipe see of each other.
#include "state/face.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace clan::preload {
namespace {

TEST(Face, KeepsTheBitsThatWereSetBefore) {
  PipePage::Face face{};
  EXPECT_EQ(state_of(face), 0u);
  add_state(face, socket_face::kAttached);
  add_state(face, socket_face::kSending);
  EXPECT_EQ(state_of(face), socket_face::kAttached | socket_face::kSending);
}

TEST(Face, AnswersHowManyHoldersThereWere) {
  PipePage::Face face{};
  EXPECT_EQ(add_holders(face, 2), 0u);
  EXPECT_EQ(add_holders(face, -1), 2u);
  EXPECT_EQ(add_holders(face, -1), 1u);
  EXPECT_EQ(face.words[socket_face::kHolders].load(), 0u);
}

// The last one to close has to end the connection.
TEST(Face, IsLeftLastByOneOfManyThatLeaveAtOnce) {
  for (int round = 0; round < 50; ++round) {
    PipePage::Face face{};
    constexpr int kHolding = 4;
    add_holders(face, kHolding);
    std::atomic<int> last{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kHolding; ++i) {
      threads.emplace_back([&] { last += add_holders(face, -1) == 1 ? 1 : 0; });
    }
    for (auto& thread : threads) thread.join();
    ASSERT_EQ(last.load(), 1);
  }
}

// What was written before is seen by an end that sees the bit.
TEST(Face, PublishesWhatWasWrittenBeforeItsState) {
  for (int round = 0; round < 200; ++round) {
    PipePage::Face face{};
    std::thread writer([&] {
      face.words[socket_face::kSwitchAt].store(77, std::memory_order_relaxed);
      add_state(face, socket_face::kSending);
    });
    while ((state_of(face) & socket_face::kSending) == 0) std::this_thread::yield();
    ASSERT_EQ(face.words[socket_face::kSwitchAt].load(std::memory_order_relaxed), 77u);
    writer.join();
  }
}

}  // namespace
}  // namespace clan::preload

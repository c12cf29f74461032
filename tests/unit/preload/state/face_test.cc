// The words that both ends of a pipe see of each other.
#include "state/face.h"

#include <gtest/gtest.h>

#include <thread>

namespace clan::preload {
namespace {

TEST(Face, KeepsTheBitsThatWereSetBefore) {
  PipePage::Face face{};
  EXPECT_EQ(state_of(face), 0u);
  add_state(face, socket_face::kAttached);
  add_state(face, socket_face::kSending);
  EXPECT_EQ(state_of(face), socket_face::kAttached | socket_face::kSending);
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

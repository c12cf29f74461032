// The gates of an open file, by the header alone: order_mutants.py weakens their orders.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "support/hand_over.h"
#include "table/open_file.h"

namespace clan::preload {
namespace {

TEST(Gate, ClosesOnlyWhenNoCallIsInTheKernel) {
  OpenFileState slot;
  {
    const OpenFileState::UnderWay call(slot.sends);
    ASSERT_TRUE(call);
    EXPECT_FALSE(OpenFileState::try_close(slot.sends, 7));
  }
  EXPECT_TRUE(OpenFileState::try_close(slot.sends, 7));
  EXPECT_FALSE(OpenFileState::try_close(slot.sends, 8));
}

TEST(Gate, TurnsCallsAwayWhileItIsClosedAndCountsThemOutAgain) {
  OpenFileState slot;
  ASSERT_TRUE(OpenFileState::try_close(slot.receives, 7));
  {
    const OpenFileState::UnderWay call(slot.receives);
    EXPECT_FALSE(call);
  }
  OpenFileState::open(slot.receives, 7);
  EXPECT_EQ(slot.receives.load(), 0u);
  const OpenFileState::UnderWay call(slot.receives);
  EXPECT_TRUE(call);
}

TEST(Gate, IsOpenedByItsOwnerAlone) {
  OpenFileState slot;
  ASSERT_TRUE(OpenFileState::try_close(slot.sends, 7));
  OpenFileState::open(slot.sends, 8);
  EXPECT_NE(slot.sends.load() & OpenFileState::kClosed, 0u);
  EXPECT_EQ(slot.sends.load() >> OpenFileState::kCloser, 7u);
  OpenFileState::open(slot.sends, 7);
  EXPECT_EQ(slot.sends.load(), 0u);
}

TEST(Gate, IsClosedOverCallsThatStepBack) {
  OpenFileState slot;
  {
    const OpenFileState::UnderWay call(slot.receives);
    ASSERT_TRUE(OpenFileState::try_close_over(slot.receives, 7));
    EXPECT_FALSE(OpenFileState::try_close_over(slot.receives, 8));
  }
  EXPECT_EQ(slot.receives.load(), OpenFileState::closed_by(7));
}

TEST(Gate, KeepsCallsAndTheOneThatHasClosedItApartBetweenThreads) {
  OpenFileState slot;
  // written by the owner of the gate, read by calls: a race unless the gate keeps them apart
  int inside = 0;
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  std::atomic<long> calls{0};
  for (int k = 0; k < 2; ++k) {
    callers.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        const OpenFileState::UnderWay call(slot.sends);
        if (!call) continue;
        EXPECT_EQ(inside % 2, 0);
        calls.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  for (int moves = 0; moves < 2000;) {
    if (!OpenFileState::try_close(slot.sends, 7)) {
      std::this_thread::yield();
      continue;
    }
    ++inside;
    ++inside;
    OpenFileState::open(slot.sends, 7);
    ++moves;
  }
  stop.store(true);
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(slot.sends.load(), 0u);
  EXPECT_EQ(inside, 4000);
}

// And what it has done by the calls that come behind it: `done` is plain.
TEST(Gate, ShowsWhatCallsHaveDoneToTheOneThatClosesIt) {
  OpenFileState slot;
  long done = 0;
  std::atomic<bool> stop{false};
  std::thread caller([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      const OpenFileState::UnderWay call(slot.sends);
      if (call) ++done;
      std::this_thread::yield();
    }
  });
  long seen = 0;
  for (int moves = 0; moves < 200;) {
    if (!OpenFileState::try_close(slot.sends, 7)) {
      std::this_thread::yield();
      continue;
    }
    EXPECT_GE(done, seen);
    seen = done;
    OpenFileState::open(slot.sends, 7);
    ++moves;
  }
  stop.store(true);
  caller.join();
}

TEST(Gate, ShowsTheNextCallWhatWasDoneBehindIt) {
  OpenFileState::Counter counter{0};
  int behind = 0;
  test::hand_over(
      [&] {
        EXPECT_TRUE(OpenFileState::try_close(counter, 1));
        behind = 1;
        OpenFileState::open(counter, 1);
      },
      [&] {
        const OpenFileState::UnderWay call(counter);
        EXPECT_TRUE(call);
        EXPECT_EQ(behind, 1);
      });
}

}  // namespace
}  // namespace clan::preload

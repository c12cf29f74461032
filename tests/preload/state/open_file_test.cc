#include "state/open_file.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "state/socket.h"

namespace clan::preload {
namespace {

TEST(Gate, ClosesOnlyWhenNoCallIsInTheKernel) {
  Slot slot;
  {
    const Slot::UnderWay call(slot.sends);
    ASSERT_TRUE(call);
    EXPECT_FALSE(Slot::try_close(slot.sends, 7));
  }
  EXPECT_TRUE(Slot::try_close(slot.sends, 7));
  EXPECT_FALSE(Slot::try_close(slot.sends, 8));
}

TEST(Gate, TurnsCallsAwayWhileItIsClosedAndCountsThemOutAgain) {
  Slot slot;
  ASSERT_TRUE(Slot::try_close(slot.receives, 7));
  {
    const Slot::UnderWay call(slot.receives);
    EXPECT_FALSE(call);
  }
  Slot::open(slot.receives, 7);
  EXPECT_EQ(slot.receives.load(), 0u);
  const Slot::UnderWay call(slot.receives);
  EXPECT_TRUE(call);
}

TEST(Gate, IsOpenedByItsOwnerAlone) {
  Slot slot;
  ASSERT_TRUE(Slot::try_close(slot.sends, 7));
  Slot::open(slot.sends, 8);
  EXPECT_NE(slot.sends.load() & Slot::kClosed, 0u);
  EXPECT_EQ(slot.sends.load() >> Slot::kCloser, 7u);
  Slot::open(slot.sends, 7);
  EXPECT_EQ(slot.sends.load(), 0u);
}

TEST(Gate, IsClosedOverCallsThatStepBack) {
  Slot slot;
  {
    const Slot::UnderWay call(slot.receives);
    ASSERT_TRUE(Slot::try_close_over(slot.receives, 7));
    EXPECT_FALSE(Slot::try_close_over(slot.receives, 8));
  }
  EXPECT_EQ(slot.receives.load(), Slot::closed_by(7));
}

TEST(Gate, KeepsCallsAndTheOneThatHasClosedItApartBetweenThreads) {
  Slot slot;
  // written by the owner of the gate, read by calls: a race unless the gate keeps them apart
  int inside = 0;
  std::atomic<bool> stop{false};
  std::vector<std::thread> callers;
  std::atomic<long> calls{0};
  for (int k = 0; k < 2; ++k) {
    callers.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        const Slot::UnderWay call(slot.sends);
        if (!call) continue;
        EXPECT_EQ(inside % 2, 0);
        calls.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  for (int moves = 0; moves < 2000;) {
    if (!Slot::try_close(slot.sends, 7)) {
      std::this_thread::yield();
      continue;
    }
    ++inside;
    ++inside;
    Slot::open(slot.sends, 7);
    ++moves;
  }
  stop.store(true);
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(slot.sends.load(), 0u);
  EXPECT_EQ(inside, 4000);
}

TEST(OpenFile, CountsProcessesAndDescriptorsOnTheirWay) {
  const std::uint64_t held = 3 + 2 * Slot::kOnItsWay;
  EXPECT_EQ(Slot::users(held), 3u);
  EXPECT_EQ(Slot::on_its_way(held), 2u);
  const std::uint64_t next = Slot::renewed(held);
  EXPECT_EQ(Slot::users(next), 1u);
  EXPECT_EQ(Slot::on_its_way(next), 0u);
  EXPECT_NE(next >> 48, held >> 48);
}

TEST(OpenFile, TakesWhatIsKnownOfASocketToSharedMemory) {
  Socket s;
  s.slot = &s.own_slot;
  s.own_slot.pipe_pid = 5;
  s.own_slot.pipe_fd = 6;
  s.own_slot.pipe_end = 1;
  Slot shared;
  EXPECT_TRUE(share_slot(s, &shared));
  EXPECT_EQ(s.slot.load(), &shared);
  EXPECT_EQ(shared.pipe_pid.load(), 5);
  EXPECT_EQ(shared.pipe_fd.load(), 6);
  EXPECT_EQ(shared.pipe_end.load(), 1);
  // What comes to the old counters sees that it has to look where they are now.
  EXPECT_NE(s.own_slot.sends.load() & Slot::kClosed, 0u);
  EXPECT_NE(s.own_slot.receives.load() & Slot::kClosed, 0u);
}

TEST(OpenFile, NeverMovesWhenACallIsUnderWayThatIsNotCountedInSharedMemory) {
  Socket s;
  s.slot = &s.own_slot;
  const Slot::UnderWay call(s.own_slot.receives);
  Slot shared;
  EXPECT_FALSE(share_slot(s, &shared));
  EXPECT_EQ(shared.pinned.load(), 1);
}

TEST(OpenFile, IsLeftOnceByAProcess) {
  Socket s;
  s.slot = &s.own_slot;
  s.own_slot.held = 2;
  s.own_slot.to_follow = 2;
  EXPECT_TRUE(leave_slot(s));
  EXPECT_EQ(s.own_slot.to_follow.load(), 1);
  EXPECT_EQ(Slot::users(s.own_slot.held.load()), 1u);
  (void)leave_slot(s);
  EXPECT_EQ(Slot::users(s.own_slot.held.load()), 1u);
}

}  // namespace
}  // namespace clan::preload

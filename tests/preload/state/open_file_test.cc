#include "state/open_file.h"

#include <gtest/gtest.h>

#include "state/socket.h"

namespace clan::preload {
namespace {

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

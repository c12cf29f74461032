#include "table/open_file.h"

#include <gtest/gtest.h>

#include "state/socket.h"

namespace clan::preload {
namespace {

TEST(OpenFile, CountsProcessesAndDescriptorsOnTheirWay) {
  const std::uint64_t held = 3 + 2 * OpenFileState::kOnItsWay;
  EXPECT_EQ(OpenFileState::users(held), 3u);
  EXPECT_EQ(OpenFileState::on_its_way(held), 2u);
  const std::uint64_t next = OpenFileState::renewed(held);
  EXPECT_EQ(OpenFileState::users(next), 1u);
  EXPECT_EQ(OpenFileState::on_its_way(next), 0u);
  EXPECT_NE(next >> 48, held >> 48);
}

TEST(OpenFile, IsLeftOnceByAProcess) {
  Socket s;
  OpenFileState slot;
  s.slot = &slot;
  slot.held = 2;
  slot.to_follow = 2;
  EXPECT_TRUE(leave_slot(s));
  EXPECT_EQ(slot.to_follow.load(), 1);
  EXPECT_EQ(OpenFileState::users(slot.held.load()), 2u) << "a call may be under way";
  for (int k = 0; k < 2; ++k) use_slot_no_more(s);
  EXPECT_EQ(OpenFileState::users(slot.held.load()), 1u);
}

}  // namespace
}  // namespace clan::preload

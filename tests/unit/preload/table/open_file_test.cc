#include "table/open_file.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "state/socket.h"

namespace clan::preload {
namespace {

TEST(OpenFile, CountsProcessesAndDescriptorsOnTheirWay) {
  const std::uint64_t held =
      3 * OpenFileState::kUser + 2 * OpenFileState::kHolder + 5 * OpenFileState::kOnItsWay;
  EXPECT_EQ(OpenFileState::users(held), 3u);
  EXPECT_EQ(OpenFileState::holders(held), 2u);
  EXPECT_EQ(OpenFileState::on_its_way(held), 5u);
  const std::uint64_t next = OpenFileState::renewed(held);
  EXPECT_EQ(OpenFileState::users(next), 1u);
  EXPECT_EQ(OpenFileState::holders(next), 1u);
  EXPECT_EQ(OpenFileState::on_its_way(next), 0u);
  EXPECT_NE(next >> OpenFileState::kLife, held >> OpenFileState::kLife);
}

TEST(OpenFile, IsAloneWithOneProcessAndNoDescriptorOnItsWay) {
  EXPECT_TRUE(OpenFileState::is_alone(OpenFileState::kProcess));
  EXPECT_FALSE(OpenFileState::is_alone(2 * OpenFileState::kProcess));
  EXPECT_FALSE(OpenFileState::is_alone(OpenFileState::kProcess + OpenFileState::kUser))
      << "a call may be under way";
  EXPECT_FALSE(OpenFileState::is_alone(OpenFileState::kProcess + OpenFileState::kOnItsWay));
}

TEST(OpenFile, IsLeftOnceByAProcess) {
  Socket s;
  OpenFileState slot;
  s.slot = &slot;
  slot.held = 2 * OpenFileState::kProcess;
  EXPECT_TRUE(leave_slot(s));
  EXPECT_TRUE(leave_slot(s));
  EXPECT_EQ(OpenFileState::holders(slot.held.load()), 1u);
  EXPECT_EQ(OpenFileState::users(slot.held.load()), 2u) << "a call may be under way";
  for (int k = 0; k < 2; ++k) use_slot_no_more(s);
  EXPECT_EQ(OpenFileState::users(slot.held.load()), 1u);
  for (int k = 0; k < 2; ++k) use_slot_again(s);
  EXPECT_EQ(slot.held.load(), 2 * OpenFileState::kProcess);
}

// The last one to close has to end the connection.
TEST(OpenFile, IsLeftLastByOneOfManyThatLeaveAtOnce) {
  for (int round = 0; round < 50; ++round) {
    constexpr int kHolding = 4;
    OpenFileState slot;
    slot.held = kHolding * OpenFileState::kProcess;
    Socket sockets[kHolding];
    std::atomic<int> last{0};
    std::vector<std::thread> threads;
    for (Socket& s : sockets) {
      s.slot = &slot;
      threads.emplace_back([&] { last += leave_slot(s) ? 0 : 1; });
    }
    for (auto& thread : threads) thread.join();
    ASSERT_EQ(last.load(), 1);
  }
}

}  // namespace
}  // namespace clan::preload

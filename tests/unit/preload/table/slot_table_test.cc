#include "table/slot_table.h"

#include <set>

#include "preload/tcp_pair.h"
#include "state/socket_pool.h"

namespace clan::preload {
namespace {

/// As the pool of Sockets takes them, under its lock.
struct SlotsOfAProcess : testing::Test {
  static OpenFileState& take() {
    lock_sockets();
    OpenFileState* slot = take_slot();
    unlock_sockets();
    return *slot;
  }
  static void give_back(OpenFileState& slot) {
    slot.held.fetch_sub(OpenFileState::kProcess);
    lock_sockets();
    give_back_slot(&slot);
    unlock_sockets();
  }
};

TEST_F(SlotsOfAProcess, GivesSlotsThatReceiversFindByTheirSocket) {
  TcpPair pair;
  SocketIdentity id;
  ASSERT_TRUE(identify(pair.fd(0), &id));
  OpenFileState& slot = take();
  EXPECT_TRUE(is_in_a_table(slot));
  EXPECT_EQ(find_slot(id, 0), nullptr);
  slot.inode = id.inode;
  slot.cookie = id.cookie;
  EXPECT_EQ(find_slot(id, 0), &slot);
  slot.pids.fetch_xor(1);
  EXPECT_EQ(find_slot(id, 0), nullptr) << "of another pid namespace";
  give_back(slot);
}

TEST_F(SlotsOfAProcess, NamesASlotByItsSocket) {
  TcpPair pair;
  OpenFileState& slot = take();
  ASSERT_TRUE(name_slot(pair.fd(0), slot));
  SocketIdentity id;
  ASSERT_TRUE(identify(pair.fd(0), &id));
  EXPECT_EQ(slot.cookie.load(), id.cookie);
  EXPECT_EQ(slot.inode.load(), id.inode);
  EXPECT_FALSE(name_slot(-1, slot));
  give_back(slot);
}

TEST_F(SlotsOfAProcess, RenewsASlotThatNobodyHas) {
  OpenFileState& slot = take();
  const std::uint64_t held = slot.held.load();
  EXPECT_EQ(OpenFileState::users(held), 1u);
  slot.pinned = 1;
  slot.moved = 1;
  give_back(slot);
  OpenFileState& again = take();
  EXPECT_EQ(&again, &slot);
  EXPECT_NE(again.held.load() >> OpenFileState::kLife, held >> OpenFileState::kLife);
  EXPECT_EQ(again.pinned.load(), 0);
  EXPECT_EQ(again.moved.load(), 0u);
  give_back(again);
}

TEST_F(SlotsOfAProcess, DoesNotGiveASlotThatAnotherProcessHasOrThatACallIsIn) {
  OpenFileState& shared = take();
  shared.held.fetch_add(OpenFileState::kProcess);
  give_back(shared);
  OpenFileState& used = take();
  EXPECT_NE(&used, &shared);
  const OpenFileState::UnderWay call(used.sends);
  give_back(used);
  OpenFileState& third = take();
  EXPECT_NE(&third, &used);
  shared.held.fetch_sub(OpenFileState::kProcess);
  give_back(third);
}

TEST_F(SlotsOfAProcess, GivesASlotThatIsPinnedWhenAllAreTaken) {
  std::set<OpenFileState*> taken;
  for (;;) {
    OpenFileState& slot = take();
    if (!is_in_a_table(slot)) {
      EXPECT_NE(slot.pinned.load(), 0);
      break;
    }
    ASSERT_TRUE(taken.insert(&slot).second);
    ASSERT_LT(taken.size(), std::size_t{1} << 20);
  }
  EXPECT_GT(taken.size(), std::size_t{30'000});
  for (OpenFileState* slot : taken) give_back(*slot);
}

TEST_F(SlotsOfAProcess, GivesASlotThatIsPinnedWhileTheProcessForks) {
  lock_sockets();
  give_no_slots(true);
  unlock_sockets();
  EXPECT_FALSE(is_in_a_table(take())) << "the child would not be counted";
  lock_sockets();
  give_no_slots(false);
  unlock_sockets();
  OpenFileState& slot = take();
  EXPECT_TRUE(is_in_a_table(slot));
  give_back(slot);
}

TEST_F(SlotsOfAProcess, KeepsASlotForACallThatIsUnderWayWhenTheLastDescriptorIsClosed) {
  TcpPair pair;
  OpenFileState* const slot = &pair.socket(0).open_file();
  {
    const SocketRef call = pair.held(0);
    pair.close(0);
    EXPECT_EQ(OpenFileState::users(slot->held.load()), 1u);
  }
  EXPECT_EQ(OpenFileState::users(slot->held.load()), 0u);
}

TEST_F(SlotsOfAProcess, KnowsNoSocketBehindWhatIsNoDescriptor) {
  SocketIdentity id;
  EXPECT_FALSE(identify(-1, &id));
}

}  // namespace
}  // namespace clan::preload

#include "share/slot_table.h"

#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

TEST(SlotTable, GivesEntriesThatReceiversFind) {
  TcpPair pair;
  ASSERT_TRUE(has_findable_table());
  SocketIdentity id;
  ASSERT_TRUE(identify(pair.fd(0), &id));
  SlotEntry* entry = new_entry();
  ASSERT_NE(entry, nullptr);
  EXPECT_TRUE(is_passable(&entry->slot));
  entry->inode = id.inode;
  entry->pids = id.pids;
  entry->cookie = id.cookie;
  EXPECT_EQ(find_entry(-1, id), entry);
  entry->cookie = 0;
  entry->slot.held.fetch_sub(1);
}

TEST(SlotTable, RenewsAnEntryThatNobodyHas) {
  SlotEntry* entry = new_entry();
  ASSERT_NE(entry, nullptr);
  const std::uint64_t held = entry->slot.held.load();
  EXPECT_EQ(Slot::users(held), 1u);
  entry->slot.held.fetch_sub(1);
  SlotEntry* again = new_entry();
  EXPECT_EQ(again, entry);
  EXPECT_NE(again->slot.held.load() >> 48, held >> 48);
  again->slot.held.fetch_sub(1);
}

TEST(SlotTable, DoesNotKnowASlotOfAnotherPlace) {
  TcpPair pair;
  EXPECT_FALSE(is_passable(pair.socket(0).slot.load()));
  SocketIdentity id;
  EXPECT_FALSE(identify(-1, &id));
}

}  // namespace
}  // namespace clan::preload

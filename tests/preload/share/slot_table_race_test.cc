// The tables of slots are looked at without a lock: ThreadSanitizer sees whether what is found
// there may be used.
#include <gtest/gtest.h>

#include "share/slot_table.h"
#include "state/socket_identity.h"
#include "support/hand_over.h"

namespace clan::preload {
namespace {

// The first to look for one in this program; later ones find it made.
TEST(SlotTable, OneThatFindsTheTableSeesWhatItsMakerHasDone) {
  int before = 0;
  test::hand_over(
      [&] {
        before = 1;
        EXPECT_NE(new_entry(), nullptr);
      },
      [&] {
        EXPECT_TRUE(has_table());
        EXPECT_EQ(before, 1);
      });
}

TEST(SlotTable, OneThatFindsAnEntryByItsNameSeesWhatWasDoneBeforeItGotIt) {
  SlotEntry* const entry = new_entry();
  ASSERT_NE(entry, nullptr);
  int before = 0;
  SocketIdentity id{};
  id.cookie = 77;
  test::hand_over(
      [&] {
        before = 1;
        // As share/passing.cc names it.
        entry->inode.store(id.inode, std::memory_order_relaxed);
        entry->pids.store(id.pids, std::memory_order_relaxed);
        entry->cookie.store(id.cookie, std::memory_order_release);
      },
      [&] {
        EXPECT_EQ(find_entry(-1, id), entry);
        EXPECT_EQ(before, 1);
      });
  entry->cookie.store(0, std::memory_order_relaxed);
}

}  // namespace
}  // namespace clan::preload

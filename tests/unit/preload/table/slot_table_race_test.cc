// Threads read the table of slots without a lock: ThreadSanitizer sees whether what is found
// there may be used.
#include <gtest/gtest.h>

#include "support/hand_over.h"
#include "table/slot_table.h"

namespace clan::preload {
namespace {

// The first to look for one in this program; later ones find it made.
TEST(SlotTable, OneThatFindsTheTableSeesWhatItsMakerHasDone) {
  int before = 0;
  test::hand_over(
      [&] {
        before = 1;
        EXPECT_TRUE(is_in_a_table(*take_slot()));
      },
      [&] {
        EXPECT_TRUE(has_table());
        EXPECT_EQ(before, 1);
      });
}

TEST(SlotTable, OneThatFindsAnEntryByItsNameSeesWhatWasDoneBeforeItGotIt) {
  OpenFileState* const slot = take_slot();
  int before = 0;
  SocketIdentity id{};
  id.cookie = 77;
  test::hand_over(
      [&] {
        before = 1;
        // As name_slot() does it.
        slot->inode.store(id.inode, std::memory_order_relaxed);
        slot->cookie.store(id.cookie, std::memory_order_release);
      },
      [&] {
        EXPECT_EQ(find_slot(id, 0), slot);
        EXPECT_EQ(before, 1);
      });
  slot->cookie.store(0, std::memory_order_relaxed);
}

}  // namespace
}  // namespace clan::preload

// What a thread may do that finds no ring of io_uring any more: ThreadSanitizer sees it.
#include <gtest/gtest.h>

#include "os/io_uring_count.h"
#include "support/hand_over.h"

namespace clan::preload {
namespace {

// As share/uring.cc counts it down.
TEST(Rings, OneThatFindsNoneAliveSeesWhatWasDoneByThem) {
  int done = 0;
  open_rings.fetch_add(1, std::memory_order_relaxed);
  test::hand_over(
      [&] {
        done = 1;
        open_rings.fetch_sub(1, std::memory_order_release);
      },
      [&] {
        EXPECT_FALSE(rings_alive());
        EXPECT_EQ(done, 1);
      });
}

}  // namespace
}  // namespace clan::preload

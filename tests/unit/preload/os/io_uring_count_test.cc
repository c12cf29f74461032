// Whether this process has rings of io_uring.
#include "os/io_uring_count.h"

#include <gtest/gtest.h>

namespace clan::preload {
namespace {

TEST(RingsAlive, AsLongAsOneOfThemIs) {
  EXPECT_FALSE(rings_alive());
  open_rings.fetch_add(2);
  EXPECT_TRUE(rings_alive());
  open_rings.fetch_sub(1);
  EXPECT_TRUE(rings_alive());
  open_rings.fetch_sub(1);
  EXPECT_FALSE(rings_alive());
}

}  // namespace
}  // namespace clan::preload

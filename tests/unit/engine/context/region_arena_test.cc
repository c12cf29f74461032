#include "engine/context/region_arena.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/mapping.h"

namespace clan::engine {
namespace {

TEST(RegionArena, GivesRegionsThatDoNotOverlapInWholePages) {
  RegionArena arena;
  const auto first = arena.allocate(100), second = arena.allocate(kPageSize + 1);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->bytes, kPageSize);
  EXPECT_EQ(second->bytes, 2 * kPageSize);
  EXPECT_EQ(first->block, second->block);
  EXPECT_GE(second->offset, first->offset + first->bytes);
}

TEST(RegionArena, GivesAFreedRegionAgainFilledWithZeros) {
  RegionArena arena;
  const auto first = arena.allocate(kPageSize);
  ASSERT_TRUE(first.ok());
  std::memset(first->data(), 0x5a, first->bytes);
  arena.free(*first);
  const auto again = arena.allocate(kPageSize);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->data(), first->data());
  for (std::size_t i = 0; i < again->bytes; ++i) ASSERT_EQ(again->data()[i], std::byte{0}) << i;
}

TEST(RegionArena, KeepsAFreedRegionForItsOwnSize) {
  RegionArena arena;
  const auto large = arena.allocate(4 * kPageSize);
  ASSERT_TRUE(large.ok());
  arena.free(*large);
  const auto small = arena.allocate(kPageSize);
  ASSERT_TRUE(small.ok());
  EXPECT_NE(small->data(), large->data());
}

TEST(RegionArena, TakesAnotherBlockWhenOneIsUsedUp) {
  RegionArena arena;
  const auto first = arena.allocate(20u << 20), second = arena.allocate(20u << 20);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->block, second->block);
}

}  // namespace
}  // namespace clan::engine

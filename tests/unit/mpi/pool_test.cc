#include "plugins/mpi/pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace clan::mpi {
namespace {

TEST(Pool, FindsTheBlockInWhichAllOfTheBytesLie) {
  Pool pool;
  std::byte* first = pool.allocate(10'000);
  std::byte* second = pool.allocate(1);
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  const std::size_t size = pool.find(first, 1)->size();
  EXPECT_GE(size, 10'000u);
  EXPECT_EQ(pool.find(first + 5000, 5000)->data(), first);
  EXPECT_EQ(pool.find(first, size)->data(), first);
  EXPECT_EQ(pool.find(second, 1)->data(), second);
  EXPECT_EQ(pool.find(first + 1, size), nullptr) << "one byte beyond the end";
  EXPECT_EQ(pool.find(first, SIZE_MAX), nullptr);
  EXPECT_EQ(pool.find(&pool, 1), nullptr);
  EXPECT_EQ(pool.find(nullptr, 1), nullptr);
}

TEST(Pool, FreesABlockOnceByItsBeginning) {
  Pool pool;
  std::byte* base = pool.allocate(8192);
  ASSERT_NE(base, nullptr);
  const auto kept = pool.find(base, 8192);
  EXPECT_FALSE(pool.free(base + 4096));
  EXPECT_TRUE(pool.free(base));
  EXPECT_FALSE(pool.free(base));
  EXPECT_EQ(pool.find(base, 1), nullptr);
  std::memset(kept->data(), 1, 8192);  // a look-up that found it keeps it
}

TEST(Pool, RefusesMoreThanItsNumberOfBlocks) {
  Pool pool;
  std::vector<std::byte*> blocks;
  while (std::byte* block = pool.allocate(Pool::kSmall)) blocks.push_back(block);
  EXPECT_EQ(blocks.size(), Pool::kMostBlocks);
  EXPECT_TRUE(pool.free(blocks.back()));
  EXPECT_NE(pool.allocate(1), nullptr);
}

TEST(Pool, LeavesAllButAFewSmallPiecesToMalloc) {
  Pool pool;
  std::vector<std::byte*> pieces;
  while (std::byte* piece = pool.allocate(Pool::kSmall - 1)) pieces.push_back(piece);
  EXPECT_EQ(pieces.size(), Pool::kMostSmall);
  std::byte* const large = pool.allocate(Pool::kSmall);
  ASSERT_NE(large, nullptr);
  EXPECT_TRUE(pool.free(large));
  EXPECT_EQ(pool.allocate(1), nullptr) << "a large one made room for a small one";
  EXPECT_TRUE(pool.free(pieces.back()));
  EXPECT_NE(pool.allocate(1), nullptr);
  EXPECT_EQ(pool.allocate(1), nullptr);
}

}  // namespace
}  // namespace clan::mpi

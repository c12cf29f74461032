// The arithmetic of a NIC's tables: which chunks of an aperture a range touches, and what a large
// copy is cut into.
#include "shm/nic_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <utility>

namespace clan::shm {
namespace {

constexpr std::uint64_t kAll = ~std::uint64_t{0};

TEST(ChunkMask, OfAnEmptyRangeIsEmpty) {
  EXPECT_EQ(chunk_mask(100, 0, 0), 0u);
  EXPECT_EQ(chunk_mask(0, 0, 1), 0u);
}

TEST(ChunkMask, OfARangeBehindTheApertureIsEmpty) {
  EXPECT_EQ(chunk_mask(100, 100, 1), 0u);
  EXPECT_EQ(chunk_mask(100, kAll, 1), 0u);
}

TEST(ChunkMask, HasAChunkForEachByteOfASmallAperture) {
  EXPECT_EQ(chunk_mask(64, 0, 1), 1u);
  EXPECT_EQ(chunk_mask(64, 63, 1), std::uint64_t{1} << 63);
  EXPECT_EQ(chunk_mask(64, 3, 4), 0b1111000u);
}

TEST(ChunkMask, OfAWholeApertureIsEveryChunkThatItHas) {
  EXPECT_EQ(chunk_mask(64, 0, 64), kAll);
  EXPECT_EQ(chunk_mask(65, 0, 65), (std::uint64_t{1} << 33) - 1);  // 33 chunks of two bytes
  EXPECT_EQ(chunk_mask(1 << 20, 0, 1 << 20), kAll);
}

TEST(ChunkMask, EndsWithTheApertureWhateverTheLengthSays) {
  EXPECT_EQ(chunk_mask(64, 60, kAll), std::uint64_t{0xf} << 60);
  EXPECT_EQ(chunk_mask(64, 60, 100), std::uint64_t{0xf} << 60);
}

TEST(ChunkMask, OfTheWholeApertureCoversEveryRangeInIt) {
  for (std::uint64_t length : {std::uint64_t{1}, std::uint64_t{63}, std::uint64_t{64},
                               std::uint64_t{65}, std::uint64_t{4097}, ~std::uint64_t{0}}) {
    const std::uint64_t all = chunk_mask(length, 0, length);
    EXPECT_EQ(chunk_mask(length, 0, ~std::uint64_t{0}), all);
    EXPECT_EQ(chunk_mask(length, length - 1, 1) & ~all, 0u);
    EXPECT_EQ(all & 1, 1u);
  }
}

TEST(ChunkMask, OfOverlappingRangesOverlaps) {
  std::mt19937_64 random(3);
  std::uint64_t told_apart = 0;
  for (int i = 0; i < 200000; ++i) {
    const std::uint64_t length = (random() >> random() % 64) | 1;
    auto range = [&] {
      const std::uint64_t start = random() % length;
      const std::uint64_t n = (random() >> random() % 64) % (length - start) + 1;
      return std::pair(start, n);
    };
    auto [a, an] = range();
    auto [b, bn] = range();
    const std::uint64_t ma = chunk_mask(length, a, an);
    const std::uint64_t mb = chunk_mask(length, b, bn);
    ASSERT_NE(ma, 0u);
    ASSERT_NE(mb, 0u);
    const bool overlap = a <= b ? b - a < an : a - b < bn;
    if (overlap) {
      ASSERT_NE(ma & mb, 0u) << length << ": " << a << "+" << an << ", " << b << "+" << bn;
    } else {
      told_apart += (ma & mb) == 0;
    }
  }
  EXPECT_GT(told_apart, 1000u);
}

TEST(ChunkMask, OfTheLongestApertureFindsItsLastByte) {
  EXPECT_EQ(chunk_mask(kAll, kAll - 1, 1), std::uint64_t{1} << 63);
  EXPECT_EQ(chunk_mask(kAll, 0, 1), 1u);
}

TEST(CopyChunk, IsAQuarterOfTheCopyWithinItsLimits) {
  EXPECT_EQ(copy_chunk_bytes(1), 32u * 1024);
  EXPECT_EQ(copy_chunk_bytes(512 * 1024), 128u * 1024);
  EXPECT_EQ(copy_chunk_bytes(std::uint64_t{1} << 30), 256u * 1024);
}

TEST(CopyChunk, IsWholePages) {
  for (std::uint64_t length = 1; length < (4u << 20); length += 12'345) {
    EXPECT_EQ(copy_chunk_bytes(length) % kPageSize, 0u) << length;
  }
}

// Each has lines that other sides write: none may straddle two.
TEST(NicMemory, KeepsSharedStructuresInLinesOfTheirOwn) {
  EXPECT_EQ(offsetof(NicSignals, tripwires) % kCacheLine, 0u);
  EXPECT_EQ(offsetof(NicSignals, activity) % kCacheLine, 0u);
  EXPECT_EQ(offsetof(NicSignals, jobs) % kCacheLine, 0u);
  EXPECT_EQ(offsetof(NicSignals, queues) % kCacheLine, 0u);
}

TEST(NicMemory, HasABitOfStateForEachTripwireAndALeafForEachEvent) {
  EXPECT_EQ(sizeof(NicSignals::tripwire_state) * 8, std::size_t{kMaxTripwires});
  EXPECT_EQ(sizeof(EventQueueMemory::leaf) * 8, std::size_t{kEventsPerQueue});
  EXPECT_EQ(sizeof(EventQueueMemory::mid) * 8 * 64, std::size_t{kEventsPerQueue});
}

}  // namespace
}  // namespace clan::shm

// MemoryBlock: memory that peers map, and from which they can be shut out.
#include "nic/memory_block.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <memory>

namespace clan::nic {
namespace {

constexpr std::size_t kPages = 8;

struct BlockTest : testing::Test {
  BlockTest() {
    auto made = MemoryBlock::create(kPages * kPageSize);
    EXPECT_TRUE(made.ok());
    block = std::move(*made);
    for (std::size_t i = 0; i < block->size(); ++i) block->data()[i] = std::byte(i / kPageSize);
  }
  /// As a peer maps it: the byte at an offset of the block.
  static int peer_sees(const MemoryBlock::Backing& backing) {
    const std::uint64_t page = backing.offset & ~std::uint64_t{kPageSize - 1};
    void* p =
        ::mmap(nullptr, kPageSize, PROT_READ, MAP_SHARED, backing.memfd, static_cast<off_t>(page));
    if (p == MAP_FAILED) return -1;
    const int byte = static_cast<int>(static_cast<std::byte*>(p)[backing.offset - page]);
    ::munmap(p, kPageSize);
    return byte;
  }
  MemoryBlock::Backing at(std::uint64_t offset, std::uint64_t length = 1) {
    const auto found = block->find(offset, length);
    EXPECT_TRUE(found) << offset;
    return found.value_or(MemoryBlock::Backing{});
  }
  std::shared_ptr<MemoryBlock> block;
};

TEST_F(BlockTest, IsWholePagesOfZeros) {
  auto small = MemoryBlock::create(1);
  ASSERT_TRUE(small.ok());
  EXPECT_EQ((*small)->size(), kPageSize);
  EXPECT_EQ((*small)->data()[kPageSize - 1], std::byte{0});
  EXPECT_FALSE(MemoryBlock::create(0).ok());
  EXPECT_FALSE(MemoryBlock::create(~std::size_t{0}).ok());
}

TEST(Block, StaysAsSparseAsItIsWhereItIsReplaced) {
  constexpr std::size_t kLarge = 64 << 20;
  auto block = *MemoryBlock::create(kLarge);
  const auto pages = [&] {
    struct stat st {};
    EXPECT_EQ(::fstat(block->find(0, kLarge)->memfd, &st), 0);
    return static_cast<std::size_t>(st.st_blocks) * 512 / kPageSize;
  };
  for (const std::size_t at : {std::size_t{0}, kLarge / 2 + 5, kLarge - 1})
    block->data()[at] = std::byte{7};
  ASSERT_EQ(pages(), 3u);
  ASSERT_TRUE(block->replace(0, kLarge).ok());
  EXPECT_EQ(pages(), 3u);
  // A part, of a memory that begins in the middle of a memfd.
  ASSERT_TRUE(block->replace(kLarge / 4, kLarge / 4).ok());
  ASSERT_TRUE(block->replace(kLarge / 2, kLarge / 2).ok());
  for (const std::size_t at : {std::size_t{0}, kLarge / 2 + 5, kLarge - 1})
    EXPECT_EQ(block->data()[at], std::byte{7}) << at;
  EXPECT_EQ(block->data()[kLarge / 2 + 4], std::byte{0});
}

TEST_F(BlockTest, ContainsItsOwnBytesAndNoneBehindThem) {
  EXPECT_TRUE(block->contains(block->data(), block->size()));
  EXPECT_TRUE(block->contains(block->data() + block->size(), 0));
  EXPECT_FALSE(block->contains(block->data() + 1, block->size()));
  EXPECT_FALSE(block->contains(block->data() - 1, 1));
  EXPECT_FALSE(block->contains(block->data(), ~std::size_t{0}));
}

TEST_F(BlockTest, ShowsPeersWhatItsOwnerHasWritten) {
  EXPECT_EQ(peer_sees(at(5 * kPageSize + 7)), 5);
  EXPECT_FALSE(block->find(0, block->size() + 1));
}

TEST_F(BlockTest, KeepsAddressesAndBytesWhenItsPagesAreReplaced) {
  const auto before = at(3 * kPageSize);
  std::byte* const data = block->data();
  ASSERT_TRUE(block->replace(3 * kPageSize + 10, kPageSize).ok());  // pages 3 and 4
  EXPECT_EQ(block->data(), data);
  for (std::size_t page = 0; page < kPages; ++page) {
    EXPECT_EQ(data[page * kPageSize], std::byte(page)) << page;
    EXPECT_EQ(peer_sees(at(page * kPageSize)), static_cast<int>(page)) << page;
  }
  EXPECT_NE(at(3 * kPageSize).id, before.id);
  EXPECT_EQ(at(5 * kPageSize).id, before.id);
}

// What a peer still has mapped is memory that nobody reads any more.
TEST_F(BlockTest, ShutsAPeerOutOfReplacedPages) {
  const auto before = at(2 * kPageSize);
  void* peer = ::mmap(nullptr, kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED, before.memfd,
                      static_cast<off_t>(before.offset));
  ASSERT_NE(peer, MAP_FAILED);
  ASSERT_TRUE(block->replace(2 * kPageSize, kPageSize).ok());
  std::memset(peer, 0x77, kPageSize);
  EXPECT_EQ(block->data()[2 * kPageSize], std::byte{2});
  block->data()[2 * kPageSize] = std::byte{9};
  EXPECT_EQ(*static_cast<std::byte*>(peer), std::byte{0x77});
  ::munmap(peer, kPageSize);
}

TEST_F(BlockTest, HasNoOneBackingAcrossTwoPieces) {
  ASSERT_TRUE(block->replace(2 * kPageSize, kPageSize).ok());
  EXPECT_FALSE(block->find(kPageSize, 2 * kPageSize));
  EXPECT_TRUE(block->find(2 * kPageSize, kPageSize));
  ASSERT_TRUE(block->replace(0, block->size()).ok());
  EXPECT_TRUE(block->find(0, block->size()));
  EXPECT_EQ(peer_sees(at(7 * kPageSize)), 7);
}

TEST_F(BlockTest, IsNotWrittenByPeersOnceItIsReadOnly) {
  ASSERT_TRUE(block->seal_read_only().ok());
  const auto backing = at(0);
  EXPECT_EQ(::mmap(nullptr, kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED, backing.memfd, 0),
            MAP_FAILED);
  block->data()[0] = std::byte{42};
  EXPECT_EQ(peer_sees(at(0)), 42);
  // Nor what is put behind it later.
  ASSERT_TRUE(block->replace(0, kPageSize).ok());
  const auto fresh = at(0);
  EXPECT_EQ(::mmap(nullptr, kPageSize, PROT_READ | PROT_WRITE, MAP_SHARED, fresh.memfd,
                   static_cast<off_t>(fresh.offset)),
            MAP_FAILED);
}

// Its peers cannot seal it for each other, and so the owner cannot either: it takes fresh memory.
TEST_F(BlockTest, ThatWasSharedForWritingBecomesReadOnlyInFreshMemory) {
  ASSERT_TRUE(block->seal_shared(0, kPageSize).ok());
  const auto before = at(0);
  ASSERT_TRUE(block->seal_read_only().ok());
  EXPECT_NE(at(0).id, before.id);
  EXPECT_EQ(peer_sees(at(6 * kPageSize)), 6);
  EXPECT_FALSE(block->seal_shared(block->size(), kPageSize).ok());
}

}  // namespace
}  // namespace clan::nic

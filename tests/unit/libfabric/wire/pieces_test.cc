// Bytes in pieces: gathered, cut and taken from the front.
#include "wire/pieces.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace clan::ofi {
namespace {

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Pieces {
  explicit Pieces(std::vector<std::string> all) : texts(std::move(all)) {
    for (auto& text : texts) iov.push_back({text.data(), text.size()});
  }
  /// The parts of [skip, skip + length), each with its offset before it.
  std::string parts(std::size_t skip, std::size_t length) const {
    std::string found;
    for_each_piece(iov.data(), iov.size(), skip, length,
                   [&](std::span<std::byte> piece, std::size_t offset) {
                     found += std::to_string(offset) + ":" + text_of(piece) + " ";
                   });
    return found;
  }
  std::vector<std::string> texts;
  std::vector<iovec> iov;
};

TEST(Pieces, AreGatheredOneBehindTheOther) {
  const Pieces pieces({"ab", "", "cdefghi", "j"});
  std::vector<std::byte> to(11, std::byte{'.'});
  gather(to.data(), pieces.iov.data(), pieces.iov.size());
  EXPECT_EQ(text_of(to), "abcdefghij.");
}

TEST(Pieces, AreCutWhereARangeBeginsAndEnds) {
  const Pieces pieces({"abc", "de", "fgh"});
  EXPECT_EQ(pieces.parts(0, 8), "0:abc 3:de 5:fgh ");
  EXPECT_EQ(pieces.parts(1, 5), "0:bc 2:de 4:f ");
  EXPECT_EQ(pieces.parts(4, 1), "0:e ");
}

TEST(Pieces, ThatEndBeforeARangeAreLeftOut) {
  const Pieces pieces({"abc", "de"});
  EXPECT_EQ(pieces.parts(3, 2), "0:de ");
  EXPECT_EQ(pieces.parts(5, 2), "");
  EXPECT_EQ(pieces.parts(4, 100), "0:e ");
  EXPECT_EQ(pieces.parts(0, 0), "");
}

TEST(TakeFront, TakesWhatIsThereAndLeavesTheRest) {
  const std::uint32_t words[] = {1, 2};
  std::span<const std::byte> bytes = bytes_of(words);
  std::uint32_t word = 0;
  ASSERT_TRUE(take_front(bytes, &word));
  EXPECT_EQ(word, 1u);
  EXPECT_EQ(bytes.size(), 4u);
}

TEST(TakeFront, TakesNothingOfWhatIsTooShort) {
  const std::byte three[3] = {};
  std::span<const std::byte> bytes(three);
  std::uint32_t word = 7;
  EXPECT_FALSE(take_front(bytes, &word));
  EXPECT_EQ(word, 7u);
  EXPECT_EQ(bytes.size(), 3u);
}

// What comes from a peer may lie anywhere.
TEST(TakeFront, ReadsFromAnUnalignedPlace) {
  std::byte memory[12] = {};
  const std::uint64_t wanted = 0x1122334455667788;
  std::memcpy(memory + 3, &wanted, sizeof wanted);
  std::span<const std::byte> bytes(memory + 3, 8);
  std::uint64_t word = 0;
  ASSERT_TRUE(take_front(bytes, &word));
  EXPECT_EQ(word, wanted);
}

}  // namespace
}  // namespace clan::ofi

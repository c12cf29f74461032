#include "wire/overlap.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace clan::ofi {
namespace {

using Part = std::tuple<std::size_t, std::size_t, std::uint64_t, std::uint64_t>;

std::vector<Part> overlaps(const std::vector<std::size_t>& local,
                           const std::vector<fi_rma_iov>& remote) {
  static std::byte memory[1000];
  std::vector<iovec> pieces;
  std::size_t at = 0;
  for (std::size_t n : local) {
    pieces.push_back({memory + at, n});
    at += n;
  }
  std::vector<Part> found;
  EXPECT_EQ(for_each_overlap(
                pieces, remote,
                [&](std::byte* from, std::size_t n, std::uint64_t key, std::uint64_t address) {
                  found.emplace_back(from - memory, n, key, address);
                  return 0;
                }),
            0);
  return found;
}

TEST(Overlap, CutsWhereAPieceOfEitherSideEnds) {
  EXPECT_EQ(overlaps({10, 5}, {{100, 4, 1}, {200, 11, 2}}),
            (std::vector<Part>{{0, 4, 1, 100}, {4, 6, 2, 200}, {10, 5, 2, 206}}));
}

TEST(Overlap, LeavesOutEmptyPiecesAndWhatOneSideHasMore) {
  EXPECT_EQ(overlaps({0, 3, 0}, {{7, 0, 1}, {9, 5, 2}}), (std::vector<Part>{{0, 3, 2, 9}}));
  EXPECT_EQ(overlaps({8}, {{7, 2, 1}}), (std::vector<Part>{{0, 2, 1, 7}}));
  EXPECT_TRUE(overlaps({}, {{7, 2, 1}}).empty());
}

TEST(Overlap, EndsWithTheFirstAnswerThatIsNotZero) {
  std::byte memory[8];
  const iovec local[] = {{memory, 4}, {memory + 4, 4}};
  const fi_rma_iov remote[] = {{0, 8, 1}};
  int calls = 0;
  const auto fail = [&](std::byte*, std::size_t, std::uint64_t, std::uint64_t) {
    ++calls;
    return -5;
  };
  EXPECT_EQ(for_each_overlap(local, remote, fail), -5);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace clan::ofi

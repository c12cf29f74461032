// Memory regions of as many pieces as there may be.
#include <algorithm>

#include "libfabric/node.h"

namespace clan::test {
namespace {

TEST(FabricManyPieces, AreSixtyFourAtMostAndOneBehindTheOther) {
  Two two;
  const std::size_t most = two.b.info->domain_attr->mr_iov_limit;
  ASSERT_EQ(most, 64u);
  std::vector<std::vector<char>> memory;
  std::vector<iovec> pieces;
  for (std::size_t i = 0; i < most + 1; ++i) {
    memory.emplace_back(1 + 37 * i % 500);
    pieces.push_back({memory.back().data(), memory.back().size()});
  }
  fid_mr* region = nullptr;
  constexpr std::uint64_t kAll = FI_REMOTE_READ | FI_REMOTE_WRITE;
  EXPECT_NE(
      fi_mr_regv(two.b.domain.get(), pieces.data(), most + 1, kAll, 0, 8, 0, &region, nullptr), 0);
  ASSERT_EQ(fi_mr_regv(two.b.domain.get(), pieces.data(), most, kAll, 0, 8, 0, &region, nullptr),
            0);
  const Object<fid_mr> registered(region);
  std::size_t size = 0;
  for (std::size_t i = 0; i < most; ++i) size += memory[i].size();
  const std::vector<char> data = pattern(size, 3);
  fi_cq_tagged_entry entry;
  ASSERT_EQ(sent(
                [&] {
                  return fi_write(two.a.ep.get(), data.data(), size, nullptr, two.to_b, 0,
                                  fi_mr_key(region), nullptr);
                },
                two.a),
            0);
  ASSERT_TRUE(two.completes(two.a, &entry));
  auto expected = data.begin();
  for (std::size_t i = 0; i < most; ++i) {
    EXPECT_TRUE(std::equal(memory[i].begin(), memory[i].end(), expected)) << i;
    expected += static_cast<std::ptrdiff_t>(memory[i].size());
  }
  std::vector<char> back(size);
  ASSERT_EQ(
      fi_read(two.a.ep.get(), back.data(), size, nullptr, two.to_b, 0, fi_mr_key(region), nullptr),
      0);
  ASSERT_TRUE(two.completes(two.a, &entry));
  EXPECT_EQ(back, data);
}

}  // namespace
}  // namespace clan::test

// Memory regions of as many pieces as there may be.
#include <algorithm>

#include "libfabric/memory.h"
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

Object<fid_mr> expose_pieces(Node& node, const std::vector<iovec>& pieces, std::uint64_t key,
                             std::uint64_t access = kAllAccess) {
  fid_mr* mr = nullptr;
  MUST(
      fi_mr_regv(node.domain.get(), pieces.data(), pieces.size(), access, 0, key, 0, &mr, nullptr));
  return Object<fid_mr>(mr);
}

TEST(FabricRegions, OfSeveralPiecesAreOneBehindTheOther) {
  for (const bool virtual_addresses : {false, true}) {
    NodeOptions options;
    if (virtual_addresses) options.mr_mode = FI_MR_BASIC;
    Two two(options, options);
    EXPECT_GE(two.b.info->domain_attr->mr_iov_limit, 4u);
    std::vector<char> one(5000), two_(3), three(100'000);
    const std::vector<iovec> pieces = {{one.data(), one.size()},
                                       {two_.data(), two_.size()},
                                       {one.data(), 0},
                                       {three.data(), three.size()}};
    auto mr = expose_pieces(two.b, pieces, 6);
    const std::uint64_t key = fi_mr_key(mr.get());
    const std::uint64_t base = virtual_addresses ? reinterpret_cast<std::uint64_t>(one.data()) : 0;
    const std::size_t size = one.size() + two_.size() + three.size();
    const auto all = pattern(size, 5);
    fi_cq_tagged_entry entry;
    ASSERT_EQ(fi_write(two.a.ep.get(), all.data(), size, nullptr, two.to_b, base, key, nullptr), 0);
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin()));
    EXPECT_TRUE(std::equal(two_.begin(), two_.end(), all.begin() + 5000));
    EXPECT_TRUE(std::equal(three.begin(), three.end(), all.begin() + 5003));
    std::vector<char> back(10);
    ASSERT_EQ(
        fi_read(two.a.ep.get(), back.data(), 10, nullptr, two.to_b, base + 4997, key, nullptr), 0);
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_TRUE(std::equal(back.begin(), back.end(), all.begin() + 4997));
    ASSERT_EQ(
        fi_read(two.a.ep.get(), back.data(), 10, nullptr, two.to_b, base + size - 9, key, nullptr),
        0);
    fi_cq_err_entry error;
    ASSERT_TRUE(two.fails(two.a, &error));
    EXPECT_EQ(error.err, FI_EINVAL);
    // The key may come to mean another region.
    mr.reset();
    ASSERT_EQ(fi_read(two.a.ep.get(), back.data(), 1, nullptr, two.to_b, base, key, nullptr), 0);
    ASSERT_TRUE(two.fails(two.a, &error));
    EXPECT_EQ(error.err, FI_ENOKEY);
    if (virtual_addresses) continue;
    mr = expose(two.b, three.data(), 10, 6);
    ASSERT_EQ(fi_read(two.a.ep.get(), back.data(), 10, nullptr, two.to_b, 0, 6, nullptr), 0);
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_TRUE(std::equal(back.begin(), back.end(), three.begin()));
  }
}

TEST(FabricRegions, OfSeveralPiecesTakeAtomicOperations) {
  Two two;
  alignas(8) std::uint64_t first[5000];
  alignas(8) unsigned char second[3 + 40'000];
  std::vector<std::uint64_t> expected(10'000, 7);
  const auto put = [&] {
    std::vector<char> bytes(80'000);
    std::memcpy(bytes.data(), expected.data(), 80'000);
    std::memcpy(first, bytes.data(), 39'997);  // a value lies across the border
    std::memcpy(second, bytes.data() + 39'997, 40'003);
  };
  const auto get = [&] {
    std::vector<std::uint64_t> values(10'000);
    std::memcpy(values.data(), first, 39'997);
    std::memcpy(reinterpret_cast<char*>(values.data()) + 39'997, second, 40'003);
    return values;
  };
  const auto mr = expose_pieces(two.b, {{first, 39'997}, {second, 40'003}}, 6);
  put();
  std::vector<std::uint64_t> operands(10'000), found(10'000);
  for (std::size_t i = 0; i < operands.size(); ++i) operands[i] = i << 20;
  const struct {
    std::size_t at, count;
  } cases[] = {{0, 10'000}, {4'998, 3}, {4'999, 1}, {0, 1}, {9'999, 1}};
  fi_cq_tagged_entry entry;
  for (const auto& c : cases) {
    const auto before = get();
    ASSERT_EQ(fi_fetch_atomic(two.a.ep.get(), operands.data(), c.count, nullptr, found.data(),
                              nullptr, two.to_b, c.at * 8, 6, FI_UINT64, FI_SUM, nullptr),
              0);
    ASSERT_TRUE(two.completes(two.a, &entry));
    EXPECT_EQ(std::memcmp(found.data(), before.data() + c.at, c.count * 8), 0);
    expected = before;
    for (std::size_t i = 0; i < c.count; ++i) expected[c.at + i] += operands[i];
    EXPECT_TRUE(get() == expected) << c.at;
  }
}

}  // namespace
}  // namespace clan::test

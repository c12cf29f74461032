#include "stream/iovec_slice.h"

#include <gtest/gtest.h>

#include <vector>

namespace clan::preload {
namespace {

char memory[100];

TEST(IoPart, SkipsWholeBuffersAndPartsOfThem) {
  const iovec all[] = {{memory, 10}, {memory + 10, 0}, {memory + 20, 30}};
  EXPECT_EQ(total(all, 3), 40u);
  const IovecSlice part(all, 3, 15);
  ASSERT_EQ(part.count, 1);
  EXPECT_EQ(part.buffers[0].iov_base, memory + 25);
  EXPECT_EQ(part.buffers[0].iov_len, 25u);
}

TEST(IoPart, EndsAfterAsManyBytesAsAreAskedFor) {
  const iovec all[] = {{memory, 10}, {memory + 10, 10}};
  const IovecSlice part(all, 2, 5, 8);
  ASSERT_EQ(part.count, 2);
  EXPECT_EQ(part.buffers[0].iov_len, 5u);
  EXPECT_EQ(part.buffers[1].iov_len, 3u);
}

TEST(IoPart, KeepsBuffersThatDiscardNull) {
  const iovec all[] = {{nullptr, 10}};
  EXPECT_EQ(discarding(all, 1), MSG_TRUNC);
  const IovecSlice part(all, 1, 4);
  EXPECT_EQ(part.buffers[0].iov_base, nullptr);
  EXPECT_EQ(part.buffers[0].iov_len, 6u);
}

TEST(IoPart, TakesNoMoreBuffersThanItHasRoomFor) {
  const std::vector<iovec> all(kMostBuffers + 1, iovec{memory, 1});
  const IovecSlice part(all.data(), static_cast<int>(all.size()), 0);
  EXPECT_EQ(part.count, kMostBuffers);
}

TEST(IoPart, IsOfOneCallWithAsMuchAsTheKernelMoves) {
  std::vector<iovec> all(40, iovec{memory, std::size_t{1} << 26});
  all[0].iov_len = 0;
  const Changed some = within_one_call(all.data(), 40);
  ASSERT_NE(some.buffers(), nullptr);
  EXPECT_EQ(some.count(), 33);
  EXPECT_EQ(total(some.buffers(), some.count()), kMostInCall);
  all[3].iov_len = ~std::size_t{0};
  const Changed fewer = within_one_call(all.data(), 40);
  EXPECT_EQ(total(fewer.buffers(), fewer.count()), kMostInCall);
  const Changed none = within_one_call(all.data(), 0);
  EXPECT_EQ(none.count(), 0);
}

}  // namespace
}  // namespace clan::preload

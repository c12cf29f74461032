#include "transport/receiver.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "cq.h"

namespace clan::ofi {
namespace {

Posted posted_into(std::initializer_list<std::span<char>> pieces) {
  Posted posted;
  posted.pieces = 0;
  for (std::span<char> piece : pieces) {
    posted.iov[posted.pieces++] = {piece.data(), piece.size()};
    posted.length += piece.size();
  }
  return posted;
}

void fill(const Posted& posted, const std::string& text) {
  fill_receive(posted, reinterpret_cast<const std::byte*>(text.data()), text.size());
}

TEST(FillReceive, SpreadsAMessageOverThePieces) {
  char a[2], b[3], c[4] = {'-', '-', '-', '-'};
  fill(posted_into({a, b, c}), "abcdef");
  EXPECT_EQ(std::string(a, 2) + std::string(b, 3) + std::string(c, 4), "abcdef---");
}

TEST(FillReceive, GoesOnBehindWhatEarlierMessagesHaveUsed) {
  char one[6] = {'-', '-', '-', '-', '-', '-'};
  Posted single = posted_into({one});
  single.used = 2;
  fill(single, "abc");
  EXPECT_EQ(std::string(one, 6), "--abc-");
  char a[3] = {'-', '-', '-'}, b[3] = {'-', '-', '-'};
  Posted several = posted_into({a, b});
  several.used = 2;
  fill(several, "xyz");
  EXPECT_EQ(std::string(a, 3) + std::string(b, 3), "--xyz-");
}

TEST(FillReceive, TakesAnEmptyMessageWithoutPieces) { fill(posted_into({}), ""); }

TEST(ReceiveCompletion, SaysWhatHasComeAndWhere) {
  char buffer[16];
  int context;
  Posted posted = posted_into({buffer});
  posted.context = &context;
  posted.used = 4;
  const Completion plain =
      receive_completion(posted, {.tag = 5, .data = 6}, ReceiveQueue::kTagged, 3);
  EXPECT_EQ(plain.context, &context);
  EXPECT_EQ(plain.flags, FI_RECV | FI_TAGGED);
  EXPECT_EQ(plain.length, 3u);
  EXPECT_EQ(plain.buffer, buffer + 4);
  EXPECT_EQ(plain.tag, 5u);
  EXPECT_EQ(plain.data, 0u) << "data that its sender has not marked as such";
  const Completion with_data =
      receive_completion(posted, {.flags = kHasData, .data = 6}, ReceiveQueue::kUntagged, 3);
  EXPECT_EQ(with_data.flags, FI_RECV | FI_MSG | FI_REMOTE_CQ_DATA);
  EXPECT_EQ(with_data.data, 6u);
}

}  // namespace
}  // namespace clan::ofi

#include "transport/receiver.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "libfabric/transport/two_endpoints.h"
#include "objects/cq.h"

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

using ReceiverTest = TwoEndpoints;

// What has failed at its sender is over there, and its number another operation's.
TEST_F(ReceiverTest, AcknowledgesNoMessageThatItCouldNotCopy) {
  ASSERT_TRUE(connect());
  Peer* const back = theirs.transport().peer(0);
  ASSERT_TRUE(until([&] { return theirs.transport().ready(*back) == 0; }));
  constexpr std::size_t kBytes = 1 << 20;
  void* const unreadable =
      ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(unreadable, MAP_FAILED);
  Message lost("");
  lost.piece = {unreadable, kBytes};
  lost.request.length = kBytes;
  lost.request.delivery = true;
  ASSERT_EQ(send(lost), 0);
  // An answer has to wait for room.
  Message filler(std::string(4096, 'f'), 7);
  filler.request.completion = false;
  ssize_t rc = 0;
  while (rc == 0) rc = theirs.transport().send(theirs.endpoint(), *back, filler.request);
  ASSERT_EQ(rc, -FI_EAGAIN);
  std::string into(kBytes, '\0');
  receive(into);
  EXPECT_EQ(theirs.failed(), EFAULT);
  for (int i = 0; i < 1'000'000 && ours.queue().empty(); ++i) ours.transport().progress();
  EXPECT_EQ(ours.failed(), EFAULT);

  Message next("next", 2);
  next.request.delivery = true;
  ASSERT_EQ(send(next), 0);
  for (int i = 0; i < 1000; ++i) both_progress();
  EXPECT_TRUE(ours.queue().empty()) << "it has not been received";
  std::string place(4, '\0');
  receive(place, 2);
  ASSERT_TRUE(until([&] { return !ours.queue().empty(); }));
  EXPECT_EQ(ours.completed(), std::vector<void*>({&next}));
  EXPECT_EQ(place, "next");
  ::munmap(unreadable, kBytes);
}

}  // namespace
}  // namespace clan::ofi

#include "wire/matching.h"

#include <gtest/gtest.h>

#include "transport/peer.h"

namespace clan::ofi {
namespace {

struct MatchingTest : testing::Test {
  ReceiveQueue queue;
  Peer one, two;

  Posted& post(ReceiveQueue::Kind kind, const Peer* from, std::uint64_t tag = 0,
               std::uint64_t ignore = 0) {
    Posted& posted = *queue.make_posted();
    posted.from = from;
    posted.tag = tag;
    posted.ignore = ignore;
    queue.posted(kind).push_back(posted);
    return posted;
  }
  Unexpected& keep(ReceiveQueue::Kind kind, Peer* from, std::uint64_t tag = 0) {
    Unexpected& message = *Unexpected::make(0);
    message.from = from;
    message.header.tag = tag;
    queue.unexpected(kind).push_back(message);
    return message;
  }
};

TEST_F(MatchingTest, TheOldestReceiveThatFitsWins) {
  Posted& first = post(ReceiveQueue::kTagged, nullptr, 7);
  Posted& any_tag = post(ReceiveQueue::kTagged, nullptr, 0, ~std::uint64_t{0});
  EXPECT_EQ(queue.match_tagged(&one, 7), &first);
  EXPECT_EQ(queue.match_tagged(&one, 8), &any_tag);
  queue.posted(ReceiveQueue::kTagged).remove(first);
  EXPECT_EQ(queue.match_tagged(&one, 7), &any_tag);
}

TEST_F(MatchingTest, IgnoresTheBitsThatTheReceiveSays) {
  Posted& posted = post(ReceiveQueue::kTagged, nullptr, 0x1200, 0x00ff);
  EXPECT_EQ(queue.match_tagged(&one, 0x12ab), &posted);
  EXPECT_EQ(queue.match_tagged(&one, 0x13ab), nullptr);
}

TEST_F(MatchingTest, ADirectedReceiveIsForOnePeer) {
  Posted& directed = post(ReceiveQueue::kUntagged, &two);
  EXPECT_EQ(queue.match_message(&one), nullptr);
  EXPECT_EQ(queue.match_message(&two), &directed);
}

TEST_F(MatchingTest, MessagesWithTagsAndWithoutDoNotMeet) {
  post(ReceiveQueue::kTagged, nullptr, 7);
  EXPECT_EQ(queue.match_message(&one), nullptr);
  keep(ReceiveQueue::kUntagged, &one);
  EXPECT_EQ(queue.find(ReceiveQueue::kTagged, nullptr, 0, ~std::uint64_t{0}), nullptr);
}

TEST_F(MatchingTest, TheOldestMessageThatFitsWins) {
  keep(ReceiveQueue::kTagged, &one, 1);
  Unexpected& first = keep(ReceiveQueue::kTagged, &two, 2);
  Unexpected& second = keep(ReceiveQueue::kTagged, &one, 2);
  EXPECT_EQ(queue.find(ReceiveQueue::kTagged, nullptr, 2, 0), &first);
  EXPECT_EQ(queue.find(ReceiveQueue::kTagged, &one, 2, 0), &second);
  EXPECT_EQ(queue.find(ReceiveQueue::kTagged, &two, 1, 0), nullptr);
}

TEST_F(MatchingTest, UsesReceivesAgain) {
  Posted& first = post(ReceiveQueue::kUntagged, nullptr);
  queue.posted(ReceiveQueue::kUntagged).remove(first);
  queue.free_posted(first);
  EXPECT_EQ(&post(ReceiveQueue::kUntagged, nullptr), &first);
}

}  // namespace
}  // namespace clan::ofi

// What progress takes to the rooms that it is for, and what it reports of peers that have gone.
#include <gtest/gtest.h>

#include "libfabric/transport/two_endpoints.h"

namespace clan::ofi {
namespace {

using ProgressTest = TwoEndpoints;

TEST_F(ProgressTest, HasNothingToDoWhereNothingHasCome) {
  ASSERT_TRUE(connect());
  EXPECT_TRUE(until([&] { return !both_progress(); }));
  EXPECT_FALSE(ours.transport().progress());
}

TEST_F(ProgressTest, TakesNoMoreMessagesOnceTheQueueHasSomething) {
  ASSERT_TRUE(connect());
  const Message first("first", 1), second("second", 2);
  std::string one(5, '\0'), two(6, '\0');
  receive(one, 1);
  receive(two, 2);
  ASSERT_EQ(send(first), 0);
  ASSERT_EQ(send(second), 0);
  while (theirs.queue().empty()) theirs.transport().progress(&theirs.queue());
  EXPECT_EQ(one, "first");
  EXPECT_EQ(two, std::string(6, '\0'));
  theirs.transport().progress(&theirs.queue());
  EXPECT_EQ(two, "second");
}

TEST_F(ProgressTest, KeepsAMessageThatNobodyHasAskedForYet) {
  ASSERT_TRUE(connect());
  const Message message("early");
  ASSERT_EQ(send(message), 0);
  EXPECT_TRUE(until([&] { return theirs.transport().progress(); }));
  std::string into(5, '\0');
  receive(into);
  EXPECT_EQ(into, "early") << "without another look";
}

TEST_F(ProgressTest, TellsOfWhatTheirsHaveNotAnsweredWhenTheyGo) {
  ASSERT_TRUE(connect());
  Message message("unanswered");
  message.request.delivery = true;
  ASSERT_EQ(send(message), 0);
  theirs.ep.reset();
  for (int i = 0; i < 2'000'000 && peer->index != kNoPeer; ++i) {
    ours.transport().progress();
    sched_yield();
  }
  EXPECT_EQ(peer->index, kNoPeer);
  EXPECT_EQ(ours.failed(), ECONNRESET);
  EXPECT_EQ(ours.transport().fence(*peer), 0);
}

TEST_F(ProgressTest, ConnectsAnewToAPeerThatHasGoneAndIsBack) {
  ASSERT_TRUE(connect());
  ours.transport().hang_up(*peer);
  ASSERT_TRUE(connect());
  const Message message("again");
  ASSERT_EQ(send(message), 0);
  std::string into(5, '\0');
  receive(into);
  EXPECT_TRUE(until([&] { return !theirs.completed().empty(); }));
  EXPECT_EQ(into, "again");
}

// Both begin at once: one of the two connections is given up, and no message with it.
TEST_F(ProgressTest, TwoThatConnectToEachOtherAtOnceHaveOneConnection) {
  Peer* const back = theirs.transport().peer(0);
  ASSERT_TRUE(until([&] {
    const bool one = ours.transport().ready(*peer) == 0;
    return theirs.transport().ready(*back) == 0 && one;
  }));
  for (int i = 0; i < 10; ++i) {
    const Message message("there " + std::to_string(i));
    std::string into(message.text.size(), '\0');
    receive(into);
    ASSERT_TRUE(until([&] { return send(message) == 0; }));
    ASSERT_TRUE(until([&] { return !theirs.completed().empty(); }));
    EXPECT_EQ(into, message.text);
  }
}

// A message with an operation that nobody knows is dropped, and what comes behind it is taken.
TEST_F(ProgressTest, DropsWhatMakesNoSense) {
  ASSERT_TRUE(connect());
  std::string into(4, '\0');
  receive(into);
  for (const auto op : {0, 99, 255}) {
    ASSERT_EQ(ours.transport().send_at_once(*peer, {.op = static_cast<Op>(op)}, "junk", 4), 0);
  }
  for (const Op op : {Op::kAck, Op::kAtomicReply, Op::kGetReply, Op::kPlace, Op::kPlaced,
                      Op::kRmaDone, Op::kPut, Op::kGet, Op::kAtomic, Op::kLongAtomic}) {
    ASSERT_EQ(ours.transport().send_at_once(*peer, {.op = op, .id = 77, .tag = 99}, "junk", 4), 0);
  }
  const Message message("sane");
  ASSERT_EQ(send(message), 0);
  EXPECT_TRUE(until([&] { return !theirs.completed().empty(); }));
  EXPECT_EQ(into, "sane");
}

}  // namespace
}  // namespace clan::ofi

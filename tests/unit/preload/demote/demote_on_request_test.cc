#include "demote/demote_on_request.h"

#include "demote/demote.h"
#include "preload/tcp_pair.h"

namespace clan::preload {
namespace {

using socket_face::kGiven;
using socket_face::kGivenBack;
using socket_face::kGone;
using socket_face::kLeaving;
using socket_face::kReadsOn;
using socket_face::kResends;
using socket_face::kSending;

// End 0 wants to go back to TCP, end 1 answers. Each step that end 0's program has not come to yet
// is left out by a test that writes its words by hand.
struct Answer : testing::Test {
  Answer() { pair.migrate_and_greet(); }
  std::uint64_t state(int end) { return state_of(pair.socket(end).mine()); }
  bool answer() { return answer_leaving(pair.fd(1), pair.socket(1)); }
  void say(std::uint64_t given) {
    // As give_back() in demote.cc does it.
    if (given == kGiven) {
      EXPECT_EQ(pair.socket(0).pipe.set_aside(), 0);
    }
    pair.socket(0).mine().words[kGivenBack].store(given, std::memory_order_release);
  }
  TcpPair pair;
};

TEST_F(Answer, IsDueWhenTheOtherEndLeavesAndUntilItIsGiven) {
  EXPECT_FALSE(is_to_go(pair.socket(1)));
  add_state(pair.socket(0).mine(), kLeaving);
  EXPECT_TRUE(is_to_go(pair.socket(1)));
  add_state(pair.socket(1).mine(), kGone);
  EXPECT_FALSE(is_to_go(pair.socket(1)));
}

TEST_F(Answer, IsDueWhereACallOfThisEndCouldNotGiveIt) {
  pair.socket(1).answer_wanted_ns = 1;
  EXPECT_TRUE(is_to_go(pair.socket(1)));
}

// That has been stopped there, or killed.
TEST_F(Answer, IsDueWhereAProcessOfThisEndHasBegunToGoBackAndTheOtherEndWouldFollow) {
  add_state(pair.socket(1).mine(), kLeaving);
  EXPECT_FALSE(is_to_go(pair.socket(1))) << "it has not said what it has read";
  pair.socket(1).mine().words[kGivenBack] = kReadsOn;
  EXPECT_TRUE(is_to_go(pair.socket(1)));
  EXPECT_TRUE(answer());
  EXPECT_NE(state(1) & kGone, 0u);
  EXPECT_FALSE(is_to_go(pair.socket(1)));
}

TEST_F(Answer, IsDueBehindTheLastRecord) {
  add_state(pair.socket(1).mine(), kLeaving);
  EXPECT_EQ(pair.socket(1).pipe.leave().err, 0);
  EXPECT_TRUE(is_to_go(pair.socket(1)));
  EXPECT_EQ(pair.send(1, "by TCP"), 6) << "it has gone";
  EXPECT_NE(state(1) & kGone, 0u);
}

// It is not waited for, and sends again nothing.
TEST_F(Answer, SendsNothingAgainWhereAllHasBeenRead) {
  add_state(pair.socket(0).mine(), kLeaving);
  say(kGiven);
  EXPECT_TRUE(answer());
  EXPECT_NE(state(1) & kResends, 0u);
  EXPECT_FALSE(pair.socket(1).is_resending());
  EXPECT_EQ(pair.socket(1).open_file().sends.load(), 0u);
}

TEST_F(Answer, IsGivenWhenTheOtherEndHasSaidWhatItHasRead) {
  add_state(pair.socket(0).mine(), kLeaving);
  EXPECT_FALSE(answer()) << "bytes of this end may have to be sent again";
  EXPECT_EQ(state(1) & kGone, 0u);
  EXPECT_TRUE(is_to_go(pair.socket(1)));
  EXPECT_NE(pair.socket(1).answer_wanted_ns.load(), 0u);
  say(kGiven);
  EXPECT_TRUE(answer());
  EXPECT_NE(state(1) & kGone, 0u);
  EXPECT_TRUE(answer()) << "once given";
}

TEST_F(Answer, SendsNothingAgainOfWhatTheOtherEndHasRead) {
  add_state(pair.socket(0).mine(), kLeaving);
  say(kReadsOn);
  EXPECT_TRUE(answer());
  EXPECT_EQ(state(1) & kResends, 0u);
  EXPECT_FALSE(pair.socket(1).is_resending());
}

TEST_F(Answer, SendsAgainWhatTheOtherEndHasNot) {
  ASSERT_EQ(pair.send(1, "unread"), 6);
  leave_pipe(pair.fd(0), true, reasons::Why::kUrgent);  // it knows TCP alone from now on
  EXPECT_NE(state(1) & kGone, 0u);
  char text[16];
  EXPECT_EQ(::recv(pair.fd(0), text, sizeof text, 0), 6);
}

// Nobody has sent by the pipe: there is nothing that the other end could be waited for.
TEST(AnswerUnswitched, IsGivenAtOnce) {
  TcpPair pair;
  pair.migrate();
  add_state(pair.socket(0).mine(), kLeaving);
  EXPECT_TRUE(answer_leaving(pair.fd(1), pair.socket(1)));
  EXPECT_EQ(state_of(pair.socket(1).mine()) & (kGone | kSending), kGone);
  EXPECT_TRUE(go(pair.fd(1), pair.socket(1))) << "it has gone";
}

TEST_F(Answer, IsLeftToTheThreadThatGivesItAlready) {
  add_state(pair.socket(0).mine(), kLeaving);
  say(kGiven);
  pair.socket(1).moving.lock();
  EXPECT_TRUE(answer()) << "it is not for this thread to do later";
  EXPECT_EQ(state(1) & kGone, 0u);
  pair.socket(1).moving.unlock();
  EXPECT_TRUE(answer());
  EXPECT_NE(state(1) & kGone, 0u);
}

TEST_F(Answer, OfOneThatIsCalledNowDoesNotWait) {
  add_state(pair.socket(0).mine(), kLeaving);
  EXPECT_FALSE(go_now(pair.fd(1), pair.socket(1)));
  EXPECT_EQ(pair.socket(1).answer_wanted_ns.load(), 0u) << "it is not put down as tried";
  say(kReadsOn);
  EXPECT_TRUE(go_now(pair.fd(1), pair.socket(1)));
  EXPECT_TRUE(go_now(pair.fd(1), pair.socket(1)));
}

TEST_F(Answer, IsNotWaitedForLongerThanTenSeconds) {
  add_state(pair.socket(0).mine(), kLeaving);
  EXPECT_FALSE(answer());
  pair.socket(1).answer_wanted_ns -= kForOtherEndNs + 1'000'000'000;
  (void)answer();
  EXPECT_NE(state(1) & kGone, 0u);
}

TEST_F(Answer, MakesReadsTheKernelsOnlyBehindTheLastByteOfThePipe) {
  EXPECT_FALSE(came_back(pair.fd(1), pair.socket(1))) << "the other end is in the pipe";
  ASSERT_EQ(pair.send(0, "last"), 4);
  leave_pipe(pair.fd(0), false, reasons::Why::kUrgent);
  ASSERT_NE(state(0) & kGone, 0u);
  EXPECT_FALSE(came_back(pair.fd(1), pair.socket(1))) << "there are bytes";
  EXPECT_EQ(pair.receive(1, 4), "last");
  EXPECT_TRUE(came_back(pair.fd(1), pair.socket(1)));
  EXPECT_TRUE(pair.socket(1).reads_kernel());
  EXPECT_NE(state(1) & kGone, 0u) << "and it has answered";
}

}  // namespace
}  // namespace clan::preload

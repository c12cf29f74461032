// From where a process goes on that takes over what another one sends again.
#include "state/resend_words.h"

#include <gtest/gtest.h>

namespace clan::preload {
namespace {

/// What the kernel has sent, and takes.
struct Kernel {
  std::uint64_t in_all = 5, takes = 10, wants = 10;
  bool known = true;
  bool sent(std::uint64_t* bytes) const {
    *bytes = in_all;
    return known;
  }
  SentAgain send(std::uint64_t at) {
    if (at >= wants) return SentAgain::kAll;
    in_all += takes;
    return SentAgain::kSome;
  }
  std::uint64_t count() const { return takes; }
};

TEST(ResendWords, GoOnBehindWhatADeadProcessHadSentAndNotCounted) {
  Resent again;
  Kernel kernel{.wants = 30};
  EXPECT_TRUE(count_resent(again, 10, kernel)) << "nothing has been sent";
  EXPECT_EQ(send_some_again(again, kernel), SentAgain::kSome);
  EXPECT_EQ(again.resent.load(), 10u);
  kernel.send(10);  // by one that was killed behind that
  EXPECT_TRUE(count_resent(again, 10, kernel));
  EXPECT_EQ(again.resent.load(), 20u);
  EXPECT_TRUE(count_resent(again, 10, kernel)) << "all had been counted";
  EXPECT_EQ(send_some_again(again, kernel), SentAgain::kSome);
  EXPECT_EQ(send_some_again(again, kernel), SentAgain::kAll);
}

TEST(ResendWords, GoOnNowhereWhereTheKernelsCountCannotBe) {
  Resent again;
  Kernel kernel;
  EXPECT_EQ(send_some_again(again, kernel), SentAgain::kSome);
  kernel.in_all += 11;
  EXPECT_FALSE(count_resent(again, 10, kernel)) << "more than a step";
  kernel.in_all = 5;
  EXPECT_FALSE(count_resent(again, 10, kernel)) << "less than has been counted";
  kernel.known = false;
  EXPECT_FALSE(count_resent(again, 10, kernel));
}

TEST(ResendWords, AreHandedOnByTheOneThatHasTheTurn) {
  OpenFileState::Counter sends{OpenFileState::closed_by(OpenFileState::kSendsAgain | 7) + 2};
  EXPECT_FALSE(
      hand_resend_on(sends, OpenFileState::kSendsAgain | 8, OpenFileState::kSendsAgain | 9));
  EXPECT_TRUE(
      hand_resend_on(sends, OpenFileState::kSendsAgain | 7, OpenFileState::kSendsAgain | 9));
  EXPECT_TRUE(OpenFileState::is_resend(sends.load()));
  EXPECT_TRUE(OpenFileState::is_closed_by(sends.load(), OpenFileState::kSendsAgain | 9));
  EXPECT_EQ(sends.load() & (OpenFileState::kClosed - 1), 2u) << "calls that step back";
}

}  // namespace
}  // namespace clan::preload

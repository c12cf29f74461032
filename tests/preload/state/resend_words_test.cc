// Which processes send again, and from where one that takes that over goes on
// (state/resend_words.h).
#include "state/resend_words.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "support/interleaving.h"
#include "support/model_checks.h"

namespace clan::preload {
namespace {

using testing::Model;
using testing::ModelAtomic;

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
  Slot::Counter sends{Slot::closed_by(Slot::kSendsAgain | 7) + 2};
  EXPECT_FALSE(hand_resend_on(sends, Slot::kSendsAgain | 8, Slot::kSendsAgain | 9));
  EXPECT_TRUE(hand_resend_on(sends, Slot::kSendsAgain | 7, Slot::kSendsAgain | 9));
  EXPECT_TRUE(Slot::is_resend(sends.load()));
  EXPECT_EQ(Slot::id_of(sends.load()), 9);
  EXPECT_EQ(sends.load() & (Slot::kClosed - 1), 2u) << "calls that step back";
}

// Two processes of one slot, and one that has another slot.
TEST(ResendWords, AreSentAgainByTheProcessesOfOneSlot) {
  Model m;
  ModelAtomic<std::uint64_t> state = m.word<std::uint64_t>("state", socket_face::kGone);
  std::array names{m.word<std::uint32_t>("name of 0"), m.word<std::uint32_t>("name of 1")};
  std::array<testing::Ghost, 3> claims{m.ghost("0"), m.ghost("1"), m.ghost("2")};
  for (std::size_t i = 0; i < claims.size(); ++i) {
    m.thread("process " + std::to_string(i), [&, i](std::uint64_t) {
      if (claims_resend(state, names[i / 2], static_cast<std::uint32_t>(i + 1))) claims[i].add(1);
    });
  }
  m.at_end([&](const Model::End& end) -> std::string {
    const bool first = end.value(claims[0]) != 0;
    if (first != (end.value(claims[1]) != 0)) return "those of a slot are not answered the same";
    if (first == (end.value(claims[2]) != 0)) return "both slots send, or none";
    return (end.value(state) & socket_face::kGone) != 0 ? "" : "a bit is lost";
  });
  expect_safe(m.run());
}

}  // namespace
}  // namespace clan::preload

// Runs the word by which processes that share an end agree on its way back to TCP
// (state/going_back.h) under every interleaving of an x86 machine, and broken versions of it to
// show that the checker would notice.
//
// A process that is stopped is one that takes its next step late; one of them may be killed before
// any. What the model has beside that code is the order of the steps of migrate/answer.cc and of
// say_goodbye(). The other end leaves, too, at any time, with a byte that it has not read: that is
// sent again, or taken by the other end if this one has gone without that, and goes by TCP once.
// The bytes of the application come behind it, and behind as many doorbells as are counted.
#include "state/going_back.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "state/call_place.h"
#include "state/doorbell_count.h"
#include "support/interleaving.h"
#include "support/model_checks.h"

namespace clan::preload {
namespace {

using socket_face::kDoorbellsClosed;
using testing::Model;
using testing::model_await;
using testing::model_restart;
using testing::ModelAtomic;
using testing::ModelFence;
using testing::Report;

TEST(GoingBack, IsJoinedUntilOneSendsAgain) {
  std::atomic<std::uint64_t> sends{0};
  EXPECT_TRUE(going_back::join(sends));
  EXPECT_TRUE(going_back::join(sends));
  EXPECT_EQ(going_back::decide(sends, 7), going_back::Decided::kForUs);
  EXPECT_FALSE(going_back::join(sends));
  EXPECT_EQ(going_back::decide(sends, 7), going_back::Decided::kByOthers) << "another thread of it";
  EXPECT_EQ(going_back::decide(sends, going_back::kTogether), going_back::Decided::kByOthers);
  going_back::open(sends, true);
  EXPECT_EQ(sends.load(), Slot::closed_by(7));
}

TEST(GoingBack, StaysDecidedUntilTheEndHasGone) {
  std::atomic<std::uint64_t> sends{0};
  EXPECT_TRUE(going_back::join(sends));
  EXPECT_EQ(going_back::decide(sends, going_back::kTogether), going_back::Decided::kForAll);
  EXPECT_EQ(going_back::decide(sends, 7), going_back::Decided::kForAll);
  going_back::open(sends, false);
  EXPECT_TRUE(going_back::join(sends));
  going_back::open(sends, true);
  EXPECT_EQ(sends.load(), 0u);
  EXPECT_EQ(going_back::decide(sends, 7), going_back::Decided::kByOthers);
}

TEST(GoingBack, IsUndecidedUntilSomebodyLetsGo) {
  std::atomic<std::uint64_t> sends{3};
  EXPECT_TRUE(going_back::join(sends));
  going_back::open(sends, false);
  EXPECT_EQ(sends.load(), 3u) << "calls that step back";
  EXPECT_EQ(going_back::decide(sends, 7), going_back::Decided::kByOthers);
}

TEST(GoingBack, IsNotForOneThatFindsTheCounterClosedBySomebodyElse) {
  std::atomic<std::uint64_t> sends{Slot::closed_by(7)};
  EXPECT_FALSE(going_back::join(sends));
  EXPECT_FALSE(going_back::may_be_joined(sends.load()));
}

struct Options {
  bool leaves = true;           ///< the other end, too
  bool rings = true;            ///< for the last record
  bool lets_go = false;         ///< one finds no place for the last record, and comes again
  bool first_decides = true;    ///< else each goes by its own look
  bool stays_decided = true;    ///< until the end has gone
  bool looks_again = true;      ///< whether the end has gone, when it has decided
  bool rings_as_others = true;  ///< in a place, before the gate is closed
  bool asks_the_kernel = true;  ///< for the number at which the count is closed
  bool one_joins = false;  ///< a third process closes the counter, and finds that the end has gone
};

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kSeqCst = std::memory_order_seq_cst;

using Word = ModelAtomic<std::uint64_t>;

struct End {
  static constexpr std::uint64_t kGoers = 2;
  static constexpr std::uint64_t kBell = 1, kAgain = 1 << 8, kApplications = 1 << 16, kByte = 0xff;
  struct Goer {
    Word owner, length, in_call;
  };
  Model m;
  Word sends = m.word<std::uint64_t>("sends"), gone = m.word<std::uint64_t>("gone");
  Word resends = m.word<std::uint64_t>("resends"), leaving = m.word<std::uint64_t>("leaving");
  Word closed = m.word<std::uint64_t>("closed"), count = m.word<std::uint64_t>("count");
  Word sent = m.word<std::uint64_t>("sent"), taken = m.word<std::uint64_t>("taken");
  Word tried = m.word<std::uint64_t>("tried");
  ModelAtomic<std::uint32_t> killed = m.word<std::uint32_t>("killed");
  testing::Ghost overtaken = m.ghost("overtaken");
  std::array<Goer, kGoers> goers;
  Options options;

  static std::uint64_t bytes(std::uint64_t word) {
    return (word & kByte) + (word / kAgain & kByte) + (word / kApplications & kByte);
  }
  static bool is_stopped(const Goer& goer) {
    std::uint64_t outside = 0;
    return goer.in_call.compare_exchange_strong(outside, 0, kSeqCst);
  }
  bool has_gone() const { return gone.load(kSeqCst) != 0; }

  void ring(const Goer& mine, std::uint64_t number) const {
    begin_call<ModelFence>(mine.owner, mine.length, number + 1, 1);
    if (closed.load(kRelaxed) == 0 && count_doorbell(count)) {
      mine.in_call.exchange(1, kSeqCst);
      const bool goes = mine.length.load(kRelaxed) != 0;
      if (goes) sent.fetch_add(kBell, kSeqCst);
      mine.in_call.exchange(0, kSeqCst);
      if (!goes) uncount_doorbell(count);
    }
    end_call(mine.owner, mine.length, 0);
  }
  void say_goodbye(std::uint64_t number) const {
    if (options.rings && options.rings_as_others) ring(goers[number], number);
    if (options.rings) close_gate();
    gone.exchange(1, kSeqCst);
  }
  void close_gate() const {
    closed.exchange(1, kSeqCst);
    begin_looking<ModelFence>();
    for (const Goer& other : goers) {
      if (take_call(other.owner, other.length) != 0 && !is_stopped(other)) model_restart(0);
    }
    const std::uint64_t all = options.asks_the_kernel ? bytes(sent.load(kSeqCst)) : kByte;
    close_doorbells(count, all);
    if (!options.rings_as_others) {  // behind the closed gate, alone with that
      count.fetch_add(1, kSeqCst);
      sent.fetch_add(kBell, kSeqCst);
    }
  }
  void go_alone(std::uint64_t number) const {
    resends.exchange(1, kSeqCst);
    say_goodbye(number);
    if ((sent.load(kSeqCst) / kApplications & kByte) != 0) overtaken.add(1);
    sent.fetch_add(kAgain, kSeqCst);
    std::uint64_t now = Slot::closed_by(static_cast<std::int32_t>(number) + 1);
    sends.compare_exchange_strong(now, 0, kSeqCst);
  }
  void go(std::uint64_t number) const {
    if (has_gone()) return;
    if (!going_back::join(sends)) model_restart(0);
    if (has_gone()) return going_back::open(sends, true);
    if (options.lets_go && number == 0 && tried.load(kSeqCst) == 0) {
      tried.exchange(1, kSeqCst);
      going_back::open(sends, false);
      model_restart(0);
    }
    const bool again = leaving.load(kSeqCst) != 0;
    const std::int32_t me = static_cast<std::int32_t>(number) + 1;
    going_back::Decided what = going_back::decide(sends, again ? me : going_back::kTogether);
    if (!options.first_decides && what == going_back::Decided::kForAll && again)
      what = going_back::Decided::kForUs;
    if (what == going_back::Decided::kForUs && (!options.looks_again || !has_gone()))
      return go_alone(number);
    if (what == going_back::Decided::kForUs) {
      std::uint64_t now = Slot::closed_by(me);
      sends.compare_exchange_strong(now, 0, kSeqCst);
    }
    if (what == going_back::Decided::kForAll) {
      if (!options.stays_decided) going_back::open(sends, true);
      say_goodbye(number);
    }
    const bool is_over = has_gone();
    going_back::open(sends, is_over);
    if (!is_over) model_restart(0);
  }
  // As a call of the application does: it may open what another has left closed.
  void send_by_tcp() const {
    const std::uint64_t now = sends.load(kSeqCst);
    if (going_back::may_be_joined(now)) going_back::open(sends, true);
    if ((now & Slot::kClosed) != 0) model_restart(1);
    sent.fetch_add(kApplications, kSeqCst);
  }
  void leave() const {
    leaving.exchange(1, kSeqCst);
    model_await(gone);
    if (resends.load(kSeqCst) == 0) taken.exchange(1, kSeqCst);
  }

  std::string wrong(const Model::End& end) const {
    const std::uint64_t all = end.value(sent);
    if (end.value(overtaken) != 0) return "a byte of the application's overtakes one sent again";
    if ((all / kAgain & kByte) + end.value(taken) > 1) return "a byte comes twice";
    if (end.value(killed) != 0 && end.value(sends) == Slot::closed_by(1)) return "";
    if (end.value(gone) == 0) return "it has not gone back";
    if (options.rings && end.value(count) != (kDoorbellsClosed | (all & kByte)))
      return "a doorbell is a byte of the application's, or the other way round";
    const std::uint64_t once = options.leaves ? 1 : 0;
    return (all / kAgain & kByte) + end.value(taken) == once ? "" : "a byte is lost";
  }

  Report run(Options o) {
    options = o;
    for (std::uint64_t i = 0; i < kGoers; ++i) {
      const std::string name = " of " + std::to_string(i);
      goers[i] = {m.word<std::uint64_t>("owner" + name), m.word<std::uint64_t>("length" + name),
                  m.word<std::uint64_t>("in the call" + name)};
    }
    const std::size_t first = m.thread("goer 0", [this](std::uint64_t) { go(0); });
    if (!options.one_joins) m.may_stop(first, killed);
    m.thread("goer 1", [this](std::uint64_t key) {
      if (key == 0) go(1);
      if (!options.one_joins) send_by_tcp();
    });
    if (options.one_joins) {
      m.thread("one that joins", [this](std::uint64_t) {
        if (going_back::join(sends) && has_gone()) going_back::open(sends, true);
      });
    }
    if (options.leaves) m.thread("the other end", [this](std::uint64_t) { leave(); });
    m.at_end([this](const Model::End& end) { return wrong(end); });
    return m.run();
  }
};

Report go_back(Options options = {}) { return End{}.run(options); }

TEST(GoingBackWordsAtLength, TellDoorbellsFromBytesWhereverTheOthersStand) {
  expect_safe(go_back({.leaves = false}));
}
TEST(GoingBackWords, LoseNoByteWhereverTheOthersStand) { expect_safe(go_back({.rings = false})); }
TEST(GoingBackWords, LoseNoByteWhereOneLetsGoAndComesAgain) {
  expect_safe(go_back({.rings = false, .lets_go = true}));
}
TEST(GoingBackWords, LoseNoByteWhereAThirdOneComesBehind) {
  expect_safe(go_back({.rings = false, .one_joins = true}));
}

TEST(GoingBackWords, WouldSendAByteTwiceIfEachDecidedByItself) {
  expect_caught(go_back({.rings = false, .first_decides = false}));
}
TEST(GoingBackWords, WouldSendAByteTwiceIfWhatIsDecidedWereOpenBeforeTheEndHasGone) {
  expect_caught(go_back({.rings = false, .stays_decided = false}));
}
TEST(GoingBackWords, WouldSendAByteTwiceIfOneThatDecidesDidNotLookAgain) {
  expect_caught(go_back({.rings = false, .looks_again = false, .one_joins = true}));
}
TEST(GoingBackWords, WouldMissADoorbellIfTheLastWereRungBehindTheGate) {
  expect_caught(go_back({.leaves = false, .rings_as_others = false}));
}
TEST(GoingBackWords, WouldCountOneThatWasNeverRungIfTheKernelWereNotAsked) {
  expect_caught(go_back({.leaves = false, .asks_the_kernel = false}));
}

}  // namespace
}  // namespace clan::preload

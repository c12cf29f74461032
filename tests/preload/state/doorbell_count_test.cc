// Runs the words by which threads that ring agree with one that takes the connection back to TCP
// (state/call_place.h, state/doorbell_count.h) under every interleaving of an x86 machine, and
// broken versions of them to show that the checker would notice.
//
// A thread that is stopped is one that takes its next step late, so the gate is closed over each
// wherever it is, but in the kernel's sendmsg(): there /proc shows no thread as stopped. What the
// model has beside that code is the order of the steps of stream/bell_call.cc and of silence() and
// close_count(). At the end as many doorbells have been sent as are counted: the bytes behind them
// are the application's.
#include "state/doorbell_count.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "state/call_place.h"
#include "support/interleaving.h"
#include "support/model_checks.h"

namespace clan::preload {
namespace {

using socket_face::kDoorbellsClosed;
using testing::Model;
using testing::model_restart;
using testing::ModelAtomic;
using testing::ModelFence;
using testing::Report;
using testing::Unfenced;

TEST(DoorbellCount, IsWhatHasBeenCountedAndNotTakenBack) {
  std::atomic<std::uint64_t> word{0};
  EXPECT_TRUE(count_doorbell(word));
  EXPECT_TRUE(count_doorbell(word));
  uncount_doorbell(word);
  EXPECT_EQ(word.load(), 1u);
}

TEST(DoorbellCount, ThatIsClosedStaysWhatItIs) {
  std::atomic<std::uint64_t> word{3};
  close_doorbells(word, 2);
  EXPECT_EQ(word.load(), kDoorbellsClosed | 2);
  EXPECT_FALSE(count_doorbell(word));
  uncount_doorbell(word);
  EXPECT_EQ(word.load(), kDoorbellsClosed | 2);
}

TEST(DoorbellCount, IsNotRaisedByWhatElseTheKernelHasSent) {
  std::atomic<std::uint64_t> word{3};
  close_doorbells(word, 7);
  EXPECT_EQ(word.load(), kDoorbellsClosed | 3);
}

struct Options {
  bool looks_at_the_gate = true;  ///< when it is about to ring
  bool takes_length_away = true;  ///< of one that rings
  bool asks_again = true;         ///< whether that one is stopped
  bool adds = false;              ///< to the count, closed or not
  bool takes_off = false;         ///< of the count what was not sent, closed or not
  bool asks_the_kernel = true;    ///< for the number at which the count is closed
};

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kSeqCst = std::memory_order_seq_cst;

using Word = ModelAtomic<std::uint64_t>;

template <typename Fence>
struct End {
  static constexpr std::uint64_t kThreads = 2;
  struct Thread {
    Word owner, length, in_call;
  };
  Model m;
  Word closed = m.word<std::uint64_t>("closed");
  Word count = m.word<std::uint64_t>("count"), sent = m.word<std::uint64_t>("sent");
  std::array<Thread, kThreads> threads;
  Options options;

  // By /proc.
  static bool is_stopped(const Thread& thread) {
    std::uint64_t outside = 0;
    return thread.in_call.compare_exchange_strong(outside, 0, kSeqCst);
  }

  bool count_one() const {
    if (!options.adds) return count_doorbell(count);
    count.fetch_add(1, kSeqCst);
    return true;
  }

  void ring(std::uint64_t number) const {
    const Thread& mine = threads[number];
    begin_call<Fence>(mine.owner, mine.length, number + 1, 1);
    const bool open = !options.looks_at_the_gate || closed.load(kRelaxed) == 0;
    if (open && count_one()) {
      mine.in_call.exchange(1, kSeqCst);
      const std::uint64_t got = mine.length.load(kRelaxed);
      if (got != 0) sent.fetch_add(1, kSeqCst);
      mine.in_call.exchange(0, kSeqCst);
      if (got == 0) {
        options.takes_off ? count.fetch_sub(1, kSeqCst) : uncount_doorbell(count);
      }
    }
    end_call(mine.owner, mine.length, 0);
  }

  void go_back() const {
    closed.exchange(1, kSeqCst);
    begin_looking<Fence>();
    for (const Thread& other : threads) {
      const bool rings = options.takes_length_away ? take_call(other.owner, other.length) != 0
                                                   : (other.owner.load(kRelaxed) & kInCall) != 0;
      if (rings && options.asks_again && !is_stopped(other)) model_restart(0);
    }
    std::uint64_t number = ~kDoorbellsClosed;
    if (options.asks_the_kernel) number = sent.load(kSeqCst);
    close_doorbells(count, number);
  }

  Report run(Options o) {
    options = o;
    for (std::uint64_t i = 0; i < kThreads; ++i) {
      const std::string name = " of " + std::to_string(i);
      threads[i] = {m.word<std::uint64_t>("owner" + name), m.word<std::uint64_t>("length" + name),
                    m.word<std::uint64_t>("in the call" + name)};
      m.thread("ringer " + std::to_string(i), [this, i](std::uint64_t) { ring(i); });
    }
    m.thread("leaver", [this](std::uint64_t) { go_back(); });
    m.at_end([this](const Model::End& end) -> std::string {
      return end.value(count) == (kDoorbellsClosed | end.value(sent))
                 ? ""
                 : "a doorbell is a byte of the application's, or the other way round";
    });
    return m.run();
  }
};

template <typename Fence = ModelFence>
Report take_back(Options options = {}) {
  return End<Fence>{}.run(options);
}

TEST(DoorbellWords, TellDoorbellsFromBytesWhereverRingersStandWhenTheConnectionGoesBack) {
  expect_safe(take_back());
}

TEST(DoorbellWords, WouldMissADoorbellWithoutFences) { expect_caught(take_back<Unfenced>()); }
TEST(DoorbellWords, WouldMissADoorbellWithoutALookAtTheGate) {
  expect_caught(take_back({.looks_at_the_gate = false}));
}
TEST(DoorbellWords, WouldMissADoorbellIfTheLengthStayed) {
  expect_caught(take_back({.takes_length_away = false}));
}
TEST(DoorbellWords, WouldMissADoorbellIfItWereNotAskedAgain) {
  expect_caught(take_back({.asks_again = false}));
}
TEST(DoorbellWords, WouldCountOneThatWasNeverRungIfItWereAdded) {
  expect_caught(take_back({.adds = true}));
}
TEST(DoorbellWords, WouldCountTooFewIfOneThatWasTakenBackWereTakenOff) {
  expect_caught(take_back({.takes_off = true}));
}
TEST(DoorbellWords, WouldCountOneThatWasNeverRungIfTheKernelWereNotAsked) {
  expect_caught(take_back({.asks_the_kernel = false}));
}

}  // namespace
}  // namespace clan::preload

// Runs the words by which threads of several processes agree on which one reads bytes of TCP
// (state/call_place.h) under every interleaving of an x86 machine, and broken versions of them to
// show that the checker would notice.
//
// A thread that is stopped is one that takes its next step late, so each takes the lock from the
// others wherever these are, but in the kernel's recvmsg(): there /proc shows no thread as
// stopped. What the model has beside that code is the order of the steps of stream/draining.cc. One
// doorbell lies in the queue, and behind it are bytes of the application's: at the end one byte has
// been taken, and counted.
#include "state/call_place.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "support/interleaving.h"
#include "support/model_checks.h"

namespace clan::preload {
namespace {

using testing::Model;
using testing::model_restart;
using testing::ModelAtomic;
using testing::ModelFence;
using testing::Report;
using testing::Unfenced;

struct Options {
  bool looks_at_its_lock = true;    ///< when it is about to read
  bool takes_length_away = true;    ///< of one that reads
  bool asks_again = true;           ///< whether that one is stopped, when it has the lock
  bool counts_in_its_place = true;  ///< by what has been taken out of the queue
  bool adds = false;                ///< what it has read, whatever the number is by now
};

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kSeqCst = std::memory_order_seq_cst;

using Word = ModelAtomic<std::uint64_t>;

template <typename Fence>
struct Queue {
  static constexpr std::uint64_t kThreads = 2;
  struct Thread {
    Word owner, length, in_call;
  };
  Model m;
  Word lock = m.word<std::uint64_t>("lock");
  Word taken = m.word<std::uint64_t>("taken"), counted = m.word<std::uint64_t>("counted");
  std::array<Thread, kThreads> threads;
  Options options;

  // By /proc.
  static bool is_stopped(const Thread& thread) {
    std::uint64_t outside = 0;
    return thread.in_call.compare_exchange_strong(outside, 0, kSeqCst);
  }

  void recount() const {
    const std::uint64_t number = taken.load(kRelaxed);
    std::uint64_t now = counted.load(kRelaxed);
    if (now < number) counted.compare_exchange_strong(now, number, kRelaxed, kRelaxed);
  }

  void let_go(std::uint64_t me) const {
    std::uint64_t mine = me;
    lock.compare_exchange_strong(mine, 0, kSeqCst, kRelaxed);
  }

  // From its owner, if that one is stopped. The others read nothing then.
  bool enter(std::uint64_t me) const {
    std::uint64_t owner = lock.load(kRelaxed);
    const bool takes = owner != 0;
    if (takes && !is_stopped(threads[owner - 1])) return false;
    if (!lock.compare_exchange_strong(owner, me, kSeqCst, kRelaxed)) return false;
    begin_looking<Fence>();
    bool reads = false;
    for (std::uint64_t i = 0; i < kThreads; ++i) {
      const Thread& other = threads[i];
      if (i + 1 == me) continue;
      const bool this_reads = options.takes_length_away
                                  ? take_call(other.owner, other.length) != 0
                                  : (other.owner.load(kRelaxed) & kInCall) != 0;
      reads |= this_reads;
      if (!this_reads || !options.asks_again || is_stopped(other)) continue;
      let_go(me);
      return false;
    }
    if ((takes || reads) && options.counts_in_its_place) recount();
    return true;
  }

  void drain(std::uint64_t number) const {
    const std::uint64_t me = number + 1;
    const Thread& mine = threads[number];
    if (!enter(me)) model_restart(0);
    std::uint64_t had = counted.load(kRelaxed);
    if (had >= 1) return let_go(me);
    begin_call<Fence>(mine.owner, mine.length, me, 1);
    std::uint64_t got = 0;
    if (!options.looks_at_its_lock || lock.load(kRelaxed) == me) {
      mine.in_call.exchange(1, kSeqCst);
      got = mine.length.load(kRelaxed);
      if (got != 0) taken.fetch_add(1, kSeqCst);
      mine.in_call.exchange(0, kSeqCst);
    }
    if (got != 0) {
      options.adds ? counted.fetch_add(1, kRelaxed)
                   : (void)counted.compare_exchange_strong(had, had + 1, kRelaxed, kRelaxed);
    }
    end_call(mine.owner, mine.length, 0);
    let_go(me);
    if (got == 0) model_restart(0);
  }

  Report run(Options o) {
    options = o;
    for (std::uint64_t i = 0; i < kThreads; ++i) {
      const std::string name = " of " + std::to_string(i);
      threads[i] = {m.word<std::uint64_t>("owner" + name), m.word<std::uint64_t>("length" + name),
                    m.word<std::uint64_t>("in the call" + name)};
      m.thread("reader " + std::to_string(i), [this, i](std::uint64_t) { drain(i); });
    }
    m.at_end([this](const Model::End& end) -> std::string {
      if (end.value(taken) != 1) return "a byte of the application's has been taken";
      return end.value(counted) == 1 ? "" : "it has not been counted once";
    });
    return m.run();
  }
};

template <typename Fence = ModelFence>
Report read(Options options = {}) {
  return Queue<Fence>{}.run(options);
}

TEST(ReaderWords, LetTwoThatTakeTheLockFromEachOtherReadOneDoorbellOnce) { expect_safe(read()); }

TEST(ReaderWords, WouldLetBothReadWithoutFences) { expect_caught(read<Unfenced>()); }
TEST(ReaderWords, WouldLetBothReadWithoutALookAtTheLock) {
  expect_caught(read({.looks_at_its_lock = false}));
}
TEST(ReaderWords, WouldLetBothReadIfTheLengthStayed) {
  expect_caught(read({.takes_length_away = false}));
}
TEST(ReaderWords, WouldLetBothReadIfItWereNotAskedAgain) {
  expect_caught(read({.asks_again = false}));
}
TEST(ReaderWords, WouldReadOnceMoreIfNobodyCountedInTheirPlace) {
  expect_caught(read({.counts_in_its_place = false}));
}
TEST(ReaderWords, WouldCountTwiceIfItAdded) { expect_caught(read({.adds = true})); }

}  // namespace
}  // namespace clan::preload

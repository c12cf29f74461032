// Runs what threads that share a sending end agree by (engine/pipe_claim_words.h) under every
// interleaving of an x86 machine, and broken versions of it to show that the checker would notice.
//
// A thread that is stopped is one that takes its next step late, so anybody takes the lock from
// anybody here. What the model has beside that code is the order of the steps of
// engine/pipe_send_shared.cc: a record has two lines, the second one its payload, and behind them
// its terminator. At the end the reader finds each record once and whole.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "engine/pipe_claim_words.h"
#include "support/interleaving.h"
#include "support/model_checks.h"

namespace clan::pipes {
namespace {

using testing::Model;
using testing::model_restart;
using testing::ModelAtomic;
using testing::ModelFence;
using testing::Report;
using testing::Unfenced;

struct Options {
  std::uint32_t senders = 2;
  bool looks_at_its_lock = true;  ///< when it has planned
  bool passes_claims = true;      ///< of the others
  bool swaps = true;              ///< the line at the tail, and does not store it
  bool finishes = true;      ///< in the place of one that has published and not raised the tail
  bool looks_early = false;  ///< at the line at the tail, before it looks at claims
  bool marks_first = false;  ///< and writes the rest of its claim then
  bool sends_two = false;    ///< the first of them, without letting go of the lock
  bool turns = true;         ///< the mark of every other plan
  bool looks_again = true;   ///< at its lock, before it finishes what another one has published
};

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

using Word = ModelAtomic<std::uint64_t>;

template <typename Fence>
struct Ring {
  static constexpr std::uint64_t kLines = 13, kRecord = 2, kHop = 1u << 8, kSecond = 4;
  struct Claim {
    Word owner, place, end;  ///< from | position << 8; the tail behind it
  };
  Model m;
  Word lock = m.word<std::uint64_t>("lock");
  Word tail = m.word<std::uint64_t>("tail");
  std::array<Word, kLines> line;
  std::array<Claim, 3> claims;
  Options options;

  bool is_ours(std::uint64_t me) const { return lock.load(kRelaxed) == me; }

  // The place of a claim that is to be believed; 0: there is none.
  std::uint64_t place_of(const Claim& claim, std::uint64_t* end) const {
    std::uint64_t place = 0;
    const std::uint64_t owner = read_marked(claim.owner, [&] {
      place = claim.place.load(kRelaxed);
      *end = claim.end.load(kRelaxed);
    });
    return owner != 0 ? place : 0;
  }
  static std::uint64_t place(std::uint64_t from, std::uint64_t position) {
    return 1u << 16 | from | position << 8;
  }
  static std::uint64_t from(std::uint64_t place) { return place & 0xff; }
  static std::uint64_t position(std::uint64_t place) { return place >> 8 & 0xff; }

  // Somebody has published at `at`, and the tail is there.
  void finish_published(std::uint64_t at, std::uint64_t head, std::uint64_t me) const {
    for (std::uint32_t i = 0; i < options.senders; ++i) {
      std::uint64_t end = 0;
      const std::uint64_t theirs = place_of(claims[i], &end);
      const std::uint64_t to = (head & kHop) != 0 ? head & 0xff : at;
      if (theirs == 0 || from(theirs) != at || position(theirs) != to) continue;
      if (!options.looks_again || is_ours(me)) raise(tail, end);
    }
  }

  std::uint64_t plan(std::uint32_t number, std::uint64_t at) const {
    std::uint64_t to = at;
    for (std::uint32_t i = 0; i < options.senders && options.passes_claims; ++i) {
      std::uint64_t end = 0;
      const std::uint64_t theirs = i == number ? 0 : place_of(claims[i], &end);
      if (theirs == 0 || end < to) continue;
      // Of an earlier tail: its lines, where the record comes to them.
      if (from(theirs) == at || position(theirs) <= to + kRecord) to = end + 1;
    }
    return to;
  }

  // Nobody has published at the tail.
  void expect_none(std::uint64_t at, std::uint64_t me, std::uint64_t key) const {
    if (const std::uint64_t head = line[at].load(kAcquire); head != 0) {
      if (options.finishes && is_ours(me)) finish_published(at, head, me);
      model_restart(key);
    }
    if (tail.load(kRelaxed) != at) model_restart(key);
  }

  bool publish(std::uint64_t at, std::uint64_t to, std::uint64_t what) const {
    line[to + 1].store(what, kRelaxed);
    line[to + kRecord].store(0, kRelease);
    std::uint64_t head = what;
    if (to != at) {
      line[to].store(what, kRelease);
      head = kHop | to;
    }
    if (options.swaps) return publish_first(line[at], head);
    const bool none = line[at].load(kAcquire) == 0;
    if (none) line[at].store(head, kRelease);
    return none;
  }

  // False: another one has published there, or has the lock.
  bool send_record(const Claim& mine, std::uint32_t number, std::uint64_t what,
                   std::uint64_t turn) const {
    const std::uint64_t me = 0x10 + number, key = (what & kSecond) != 0 ? what : 0;
    const std::uint64_t at = tail.load(kRelaxed);
    Fence::even();
    if (options.looks_early) expect_none(at, me, key);
    const std::uint64_t to = plan(number, at);
    if (!options.looks_early) expect_none(at, me, key);
    if (to + kRecord >= kLines) model_restart(key);  // no room beside those that are stopped
    const std::uint64_t marked = kPlanned | me | (options.turns ? turn : 0);
    if (options.marks_first) mark_claim<Fence>(mine.owner, marked);
    mine.place.store(place(at, to), kRelaxed);
    mine.end.store(to + kRecord, kRelaxed);
    if (!options.marks_first) mark_claim<Fence>(mine.owner, marked);
    const bool goes_on = !options.looks_at_its_lock || is_ours(me);
    const bool sent = goes_on && publish(at, to, what);
    if (sent) raise(tail, to + kRecord);
    unmark_claim(mine.owner, me);
    return sent;
  }

  // `key`: which record comes first; 0: the first.
  void send(std::uint32_t number, std::uint64_t key) const {
    const std::uint64_t me = 0x10 + number;
    const Claim& mine = claims[number];
    std::uint64_t owner = lock.load(kRelaxed);
    if (!lock.compare_exchange_strong(owner, me, kAcquire, kRelaxed)) model_restart(key);
    if (key == 0 && !send_record(mine, number, me, 0)) model_restart(0);
    const std::uint64_t turn = key == 0 ? kTurn : 0;  // a call begins with the same
    if (number == 0 && options.sends_two && !send_record(mine, number, me | kSecond, turn))
      model_restart(me | kSecond);
    unmark_claim(mine.owner, 0);
    std::uint64_t still = me;
    lock.compare_exchange_strong(still, 0, kRelease, kRelaxed);
  }

  // As the reader, when nobody writes any more.
  std::string read(const Model::End& end) const {
    std::uint64_t at = 0, found = 0;
    for (std::uint64_t head; (head = end.value(line[at])) != 0; at += kRecord) {
      if ((head & kHop) != 0) at = head & 0xff;
      const std::uint64_t whose = end.value(line[at]);
      if (end.value(line[at + 1]) != whose) return "a record is another one's";
      const std::uint64_t bit = std::uint64_t{1} << (whose & 0xf);
      if ((found & bit) != 0) return "a record comes twice";
      found |= bit;
    }
    std::uint64_t all = (std::uint64_t{1} << options.senders) - 1;
    if (options.sends_two) all |= std::uint64_t{1} << kSecond;
    if (found != all) return "a record is missing";
    return end.value(tail) == at ? "" : "the tail is not behind the last record";
  }

  Report run(Options o) {
    options = o;
    for (std::uint64_t i = 0; i < kLines; ++i)
      line[i] = m.word<std::uint64_t>("line " + std::to_string(i));
    for (std::uint32_t i = 0; i < o.senders; ++i) {
      claims[i].owner = m.word<std::uint64_t>("owner " + std::to_string(i));
      claims[i].place = m.word<std::uint64_t>("place " + std::to_string(i));
      claims[i].end = m.word<std::uint64_t>("end " + std::to_string(i));
    }
    for (std::uint32_t i = 0; i < o.senders; ++i)
      m.thread("sender " + std::to_string(i), [this, i](std::uint64_t key) { send(i, key); });
    m.at_end([this](const Model::End& end) { return read(end); });
    return m.run();
  }
};

template <typename Fence = ModelFence>
Report ring(Options options = {}) {
  return Ring<Fence>{}.run(options);
}

TEST(PipeClaimWords, LetEachOfTwoThatTakeTheLockFromEachOtherSendItsRecordOnce) {
  expect_safe(ring());
}

TEST(PipeClaimWordsAtLength, LetAThreadPlanTwiceWhereAnotherOneFinishesInItsPlace) {
  expect_safe(ring({.sends_two = true}));
}

TEST(PipeClaimWordsAtLength, WouldBelieveTwoPlansAsOneWithoutAMarkOfEveryOther) {
  expect_caught(ring({.sends_two = true, .turns = false}));
}
TEST(PipeClaimWordsAtLength, WouldBelieveTwoCallsAsOneWithoutALookAtItsLockBehindThat) {
  expect_caught(ring({.sends_two = true, .looks_again = false}));
}

TEST(PipeClaimWords, WouldLoseARecordWithoutFences) { expect_caught(ring<Unfenced>()); }
TEST(PipeClaimWords, WouldLoseARecordWithoutALookAtTheLock) {
  expect_caught(ring({.looks_at_its_lock = false}));
}
TEST(PipeClaimWords, WouldSpoilARecordIfTheLineAtTheTailWereLookedAtBeforeTheClaims) {
  expect_caught(ring({.looks_early = true}));
}
TEST(PipeClaimWords, WouldLoseARecordIfNobodyPassedTheLinesOfOthers) {
  expect_caught(ring({.passes_claims = false}));
}
TEST(PipeClaimWords, WouldLoseARecordIfTheLineAtTheTailWereStored) {
  expect_caught(ring({.swaps = false}));
}
TEST(PipeClaimWords, WouldBelieveHalfAClaimThatIsMarkedFirst) {
  expect_caught(ring({.marks_first = true}));
}

}  // namespace
}  // namespace clan::pipes

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
};

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

using Word = ModelAtomic<std::uint64_t>;

template <typename Fence>
struct Ring {
  static constexpr std::uint64_t kLines = 10, kRecord = 2, kHop = 1u << 8;
  struct Claim {
    Word owner, place;  ///< from | position << 8
  };
  Model m;
  Word lock = m.word<std::uint64_t>("lock");
  Word tail = m.word<std::uint64_t>("tail");
  std::array<Word, kLines> line;
  std::array<Claim, 3> claims;
  Options options;

  bool is_ours(std::uint64_t me) const { return lock.load(kRelaxed) == me; }

  // The place of a claim that is to be believed; 0: there is none.
  std::uint64_t place_of(const Claim& claim) const {
    std::uint64_t place = 0;
    return read_marked(claim.owner, [&] { place = claim.place.load(kRelaxed); }) != 0 ? place : 0;
  }
  static std::uint64_t place(std::uint64_t from, std::uint64_t position) {
    return 1u << 16 | from | position << 8;
  }
  static std::uint64_t from(std::uint64_t place) { return place & 0xff; }
  static std::uint64_t position(std::uint64_t place) { return place >> 8 & 0xff; }

  // Somebody has published at `at`, and the tail is there.
  void finish_published(std::uint64_t at, std::uint64_t head) const {
    for (std::uint32_t i = 0; i < options.senders; ++i) {
      const std::uint64_t theirs = place_of(claims[i]);
      const std::uint64_t to = (head & kHop) != 0 ? head & 0xff : at;
      if (theirs != 0 && from(theirs) == at && position(theirs) == to) raise(tail, to + kRecord);
    }
  }

  std::uint64_t plan(std::uint32_t number, std::uint64_t at) const {
    std::uint64_t to = at;
    for (std::uint32_t i = 0; i < options.senders && options.passes_claims; ++i) {
      const std::uint64_t theirs = i == number ? 0 : place_of(claims[i]);
      if (theirs == 0) continue;
      const std::uint64_t end = position(theirs) + kRecord;
      if (from(theirs) == at && end >= to) to = end + 1;
    }
    return to;
  }

  // Nobody has published at the tail.
  void expect_none(std::uint64_t at, std::uint64_t me) const {
    if (const std::uint64_t head = line[at].load(kAcquire); head != 0) {
      if (options.finishes && is_ours(me)) finish_published(at, head);
      model_restart(0);
    }
    if (tail.load(kRelaxed) != at) model_restart(0);
  }

  bool publish(std::uint64_t at, std::uint64_t to, std::uint64_t me) const {
    line[to + 1].store(me, kRelaxed);
    line[to + kRecord].store(0, kRelease);
    std::uint64_t head = me;
    if (to != at) {
      line[to].store(me, kRelease);
      head = kHop | to;
    }
    if (options.swaps) return publish_first(line[at], head);
    const bool none = line[at].load(kAcquire) == 0;
    if (none) line[at].store(head, kRelease);
    return none;
  }

  void send(std::uint32_t number) const {
    const std::uint64_t me = 0x10 + number;
    const Claim& mine = claims[number];
    std::uint64_t owner = lock.load(kRelaxed);
    if (!lock.compare_exchange_strong(owner, me, kAcquire, kRelaxed)) model_restart(0);
    const std::uint64_t at = tail.load(kRelaxed);
    Fence::even();
    if (options.looks_early) expect_none(at, me);
    const std::uint64_t to = plan(number, at);
    if (!options.looks_early) expect_none(at, me);
    if (to + kRecord >= kLines) model_restart(0);  // no room beside those that are stopped
    if (options.marks_first) mark_claim<Fence>(mine.owner, kPlanned | me);
    mine.place.store(place(at, to), kRelaxed);
    if (!options.marks_first) mark_claim<Fence>(mine.owner, kPlanned | me);
    const bool goes_on = !options.looks_at_its_lock || is_ours(me);
    if (!goes_on || !publish(at, to, me)) {
      unmark_claim(mine.owner, me);
      model_restart(0);
    }
    raise(tail, to + kRecord);
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
    if (found != (std::uint64_t{1} << options.senders) - 1) return "a record is missing";
    return end.value(tail) == at ? "" : "the tail is not behind the last record";
  }

  Report run(Options o) {
    options = o;
    for (std::uint64_t i = 0; i < kLines; ++i)
      line[i] = m.word<std::uint64_t>("line " + std::to_string(i));
    for (std::uint32_t i = 0; i < o.senders; ++i) {
      claims[i].owner = m.word<std::uint64_t>("owner " + std::to_string(i));
      claims[i].place = m.word<std::uint64_t>("place " + std::to_string(i));
    }
    for (std::uint32_t i = 0; i < o.senders; ++i)
      m.thread("sender " + std::to_string(i), [this, i](std::uint64_t) { send(i); });
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

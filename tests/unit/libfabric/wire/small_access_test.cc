// The list of small accesses to one peer, with a target that is an array.
#include "wire/small_access.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace clan::ofi {
namespace {

/// A target, and the rest of an initiator's transport.
struct Host {
  std::vector<std::unique_ptr<SharedAccessWord>> words;
  std::uint64_t dropped_before = 0;  ///< messages that the target has dropped
  std::uint64_t answered = 0, now = 1'000;
  bool may_make = true;
  unsigned looks = 0, is_made_until = 0;      ///< the one in front is being made, by a thread
  std::vector<std::uint64_t> made, finished;  ///< addresses

  void send(SmallAccesses& accesses, std::uint64_t atomics = 0) {
    words.push_back(std::make_unique<SharedAccessWord>());
    prepare_access(*words.back());
    SmallAccess& a = accesses.push();
    a = {};
    a.word = words.back().get();
    a.mark = words.size() - 1;
    a.address = words.size() - 1;
    a.bytes = &byte;
    ++accesses.turn;
    a.atomics = atomics;
  }
  void serve(std::size_t index) {
    serve_access(*words[index], [] { return true; });
  }

  bool has_left(const SmallAccess& a) const { return a.mark < dropped_before; }
  bool make(SmallAccess& a) {
    if (!may_make) return false;
    made.push_back(a.address);
    end_own_access(*a.word, true);
    return true;
  }
  void finish_write(SmallAccess& a) { finished.push_back(a.address); }
  std::uint64_t now_ns() const { return now; }
  std::uint64_t atomics_answered() const { return answered; }
  bool reap(SmallAccesses& accesses) {
    ++looks;
    if (looks < is_made_until) return false;
    return reap_accesses(accesses, *this);
  }

  std::byte byte{};
};

using Numbers = std::vector<std::uint64_t>;

struct SmallAccessList : testing::Test {
  SmallAccesses accesses;
  Host host;
};

TEST_F(SmallAccessList, EndsThoseThatTheTargetHasMadeInTheirOrder) {
  for (int i = 0; i < 3; ++i) host.send(accesses);
  EXPECT_FALSE(reap_accesses(accesses, host));
  host.serve(0);
  EXPECT_TRUE(reap_accesses(accesses, host));
  EXPECT_EQ(host.finished, Numbers({0}));
  host.serve(1);
  host.serve(2);
  EXPECT_TRUE(reap_accesses(accesses, host));
  EXPECT_EQ(host.finished, Numbers({0, 1, 2}));
  EXPECT_TRUE(accesses.empty());
  EXPECT_TRUE(host.made.empty());
}

TEST_F(SmallAccessList, TakesADroppedMessageForMadeWithoutLookingAtItsWord) {
  host.send(accesses);
  host.dropped_before = 1;  // the ring may have used that memory again: the word means nothing
  host.words[0]->store(kAccessRefused);
  EXPECT_TRUE(reap_accesses(accesses, host));
  EXPECT_EQ(host.finished, Numbers({0}));
  EXPECT_TRUE(host.made.empty());
}

TEST_F(SmallAccessList, MakesWhatTheTargetHasRefused) {
  host.send(accesses);
  serve_access(*host.words[0], [] { return false; });
  EXPECT_TRUE(reap_accesses(accesses, host));
  EXPECT_EQ(host.made, Numbers({0}));
  EXPECT_EQ(look_at_access(*host.words[0]), kAccessDone);
}

TEST_F(SmallAccessList, MakesEverythingItselfWhereTheTargetDoesNotPoll) {
  for (int i = 0; i < 3; ++i) host.send(accesses);
  EXPECT_EQ(take_accesses_back(accesses, host), AccessesLeft::kNone);
  EXPECT_EQ(host.made, Numbers({0, 1, 2}));
  EXPECT_TRUE(accesses.empty());
}

TEST_F(SmallAccessList, WaitsForATargetThatIsAtOne) {
  host.send(accesses);
  host.words[0]->store(kAccessTheirs);
  EXPECT_EQ(take_accesses_back(accesses, host), AccessesLeft::kTheirs);
  host.words[0]->store(kAccessDone);
  EXPECT_EQ(take_accesses_back(accesses, host), AccessesLeft::kNone);
  EXPECT_EQ(host.finished, Numbers({0}));
}

TEST_F(SmallAccessList, DoesNotOvertakeAtomicOperationsThatAreUnanswered) {
  host.send(accesses);
  host.send(accesses, 2);
  host.answered = 1;
  EXPECT_EQ(take_accesses_back(accesses, host), AccessesLeft::kBehindAtomics);
  EXPECT_EQ(host.made, Numbers({0}));
  host.answered = 2;
  EXPECT_EQ(take_accesses_back(accesses, host), AccessesLeft::kNone);
  EXPECT_EQ(host.made, Numbers({0, 1}));
}

TEST_F(SmallAccessList, KeepsOneThatCanOnlyBeMadeLater) {
  host.send(accesses);
  host.may_make = false;
  EXPECT_EQ(take_accesses_back(accesses, host), AccessesLeft::kTheirs);
  EXPECT_FALSE(accesses.empty());
  EXPECT_EQ(look_at_access(*host.words[0]), kAccessOurs);
}

TEST_F(SmallAccessList, SurvivesATargetThatWritesNonsense) {
  host.send(accesses);
  host.words[0]->store(0x0123456789abcdef);
  EXPECT_EQ(take_accesses_back(accesses, host), AccessesLeft::kNone);
  EXPECT_EQ(host.made, Numbers({0}));
}

TEST_F(SmallAccessList, DoesNotLookForEverAtOneThatIsBeingMadeAndWhoseWordTheTargetWritesOver) {
  for (const AccessWord nonsense : {kAccessDone, kAccessRefused, AccessWord{0x0123456789abcdef}}) {
    host.send(accesses);
    host.words.back()->store(nonsense);
    host.looks = 0;
    host.is_made_until = 1000;
    EXPECT_EQ(take_accesses_back(accesses, host), AccessesLeft::kTheirs);
    EXPECT_LT(host.looks, 10u);
    accesses.clear();
  }
}

TEST_F(SmallAccessList, AvoidsMessagesTwiceAsLongEachTimeThePeerDoesNotPoll) {
  std::vector<std::uint32_t> lengths;
  for (int i = 0; i < 8; ++i) {
    accesses.avoid_messages();
    lengths.push_back(accesses.direct);
  }
  EXPECT_EQ(lengths, std::vector<std::uint32_t>({8, 16, 32, 64, 128, 256, 256, 256}));
  host.send(accesses);
  host.serve(0);
  reap_accesses(accesses, host);
  accesses.avoid_messages();
  EXPECT_EQ(accesses.direct, kFirstDirect) << "a peer that polls again starts anew";
}

TEST_F(SmallAccessList, AvoidsMessagesToAPeerThatAnswersLaterThanASystemCallWould) {
  const auto answered_after = [&](std::uint64_t ns) {
    host.send(accesses);
    accesses.back().length = 800;
    EXPECT_FALSE(reap_accesses(accesses, host));
    EXPECT_FALSE(patience_ends(accesses, [&] { return host.now; }));
    host.now += ns;
    host.serve(host.words.size() - 1);
    accesses.direct = 0;
    EXPECT_TRUE(reap_accesses(accesses, host));
    return accesses.direct;
  };
  constexpr std::uint64_t kLimit = kSystemCallNs + 800 / kBytesPerNs;
  for (std::uint32_t i = 1; i < kTurnsPerTiming; ++i) {
    EXPECT_EQ(answered_after(10 * kLimit), 0u) << "this one is not timed";
  }
  EXPECT_EQ(answered_after(kLimit), 0u);
  for (std::uint32_t i = 1; i < kTurnsPerTiming; ++i) (void)answered_after(0);
  EXPECT_EQ(answered_after(kLimit + 1), kFirstDirect);
  EXPECT_EQ(answered_after(kLimit + 1), 2 * kFirstDirect) << "each one is timed now";
  EXPECT_EQ(answered_after(kLimit), 0u);
  EXPECT_EQ(accesses.next_direct, 0u) << "a peer that is fast again starts anew";
  accesses.timed = false;
  for (std::uint32_t i = 0; i < kTurnsPerTiming; ++i) EXPECT_EQ(answered_after(10 * kLimit), 0u);
}

TEST_F(SmallAccessList, ReadsTheClockSeldomAndIsImpatientAfterTenMicroseconds) {
  std::uint64_t now = 1000, reads = 0;
  const auto clock = [&] { return ++reads, now; };
  for (std::uint32_t i = 0; i < kLooksPerClock; ++i) EXPECT_FALSE(patience_ends(accesses, clock));
  EXPECT_EQ(reads, 2u) << "at the first look, to time the access, and at the last";
  now += kAccessPatienceNs;
  for (std::uint32_t i = 0; i < kLooksPerClock; ++i) EXPECT_FALSE(patience_ends(accesses, clock));
  now += 1;
  bool ended = false;
  for (std::uint32_t i = 0; i < kLooksPerClock; ++i)
    ended = patience_ends(accesses, clock) || ended;
  EXPECT_TRUE(ended);
  EXPECT_EQ(reads, 4u);
}

TEST_F(SmallAccessList, HoldsAsManyAsItsRingHas) {
  for (std::size_t i = 0; i < SmallAccesses::kMost; ++i) {
    EXPECT_FALSE(accesses.full());
    host.send(accesses);
  }
  EXPECT_TRUE(accesses.full());
  EXPECT_EQ(take_accesses_back(accesses, host), AccessesLeft::kNone);
  Numbers all(SmallAccesses::kMost);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  EXPECT_EQ(host.made, all);
}

}  // namespace
}  // namespace clan::ofi

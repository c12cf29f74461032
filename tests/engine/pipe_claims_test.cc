#include "engine/pipe_claims.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "support/pipe_pair.h"

namespace clan {
namespace {

using pipes::Claiming;
using pipes::Planned;

Planned planned_at(std::uint64_t from) { return {from, from + 3, {.tail = from + 9}, 77}; }

TEST(PipeClaims, AreBelievedFromThePlanUntilItIsGivenUp) {
  PipePair p;
  PipePage::End& end = p.a.page().ends[0];
  Planned seen;
  {
    Claiming mine(end);
    ASSERT_TRUE(mine);
    const auto& claim = end.claims[mine.number()];
    EXPECT_TRUE(mine.is(claim));
    EXPECT_FALSE(read_claim(claim, &seen));
    mine.plan(planned_at(5));
    ASSERT_TRUE(read_claim(claim, &seen));
    EXPECT_EQ(seen.from, 5u);
    EXPECT_EQ(seen.position, 8u);
    EXPECT_EQ(seen.after.tail, 14u);
    EXPECT_EQ(seen.bytes, 77u);
    mine.unplan();
    EXPECT_FALSE(read_claim(claim, &seen));
  }
  for (const auto& claim : end.claims) EXPECT_EQ(claim.owner, 0u);
}

TEST(PipeClaims, AreEightOfWhichOneIsForLastRecords) {
  PipePair p;
  std::vector<std::unique_ptr<Claiming>> some;
  for (std::size_t i = 0; i + 1 < PipePage::kClaims; ++i) {
    some.push_back(std::make_unique<Claiming>(p.a.page().ends[0]));
    EXPECT_TRUE(*some.back());
  }
  EXPECT_FALSE(Claiming(p.a.page().ends[0]));
  EXPECT_TRUE(Claiming(p.a.page().ends[1]));
  some.push_back(std::make_unique<Claiming>(p.a.page().ends[0], Claiming::For::kLast));
  EXPECT_TRUE(*some.back());
  EXPECT_FALSE(Claiming(p.a.page().ends[0], Claiming::For::kLast));
  some.erase(some.begin());
  EXPECT_TRUE(Claiming(p.a.page().ends[0], Claiming::For::kLast)) << "any will do";
}

TEST(PipeClaims, SayInWhichPidNamespaceTheirOwnerHasDied) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  const std::uint64_t space = std::uint64_t{sys::pid_namespace()} << 32;
  ASSERT_NE(space, 0u);
  const auto dead = static_cast<std::uint64_t>(child);
  EXPECT_TRUE(pipes::owner_has_died(space | dead | pipes::kPlanned));
  EXPECT_FALSE(pipes::owner_has_died(space | pipes::thread_id()));
  EXPECT_FALSE(pipes::owner_has_died(dead | pipes::kPlanned)) << "it may count elsewhere";
  EXPECT_FALSE(pipes::owner_has_died((space ^ std::uint64_t{1} << 32) | dead));
}

TEST(PipeClaims, OfALastRecordSayHowItEnds) {
  PipePair p;
  PipePage::End& end = p.a.page().ends[0];
  Claiming mine(end, Claiming::For::kLast);
  Planned planned = planned_at(5), seen;
  planned.ends = 1;
  mine.plan(planned);
  ASSERT_TRUE(read_claim(end.claims[mine.number()], &seen));
  EXPECT_EQ(seen.ends, 1u);
  raise_cursors(end.sender, seen);
  EXPECT_EQ(end.sender.ended, 1u);
  planned.ends = 2;
  raise_cursors(end.sender, planned);
  EXPECT_EQ(end.sender.ended, 1u) << "the first is the last";
}

TEST(PipeClaims, CursorsOnlyRise) {
  PipePair p;
  auto& sender = p.a.page().ends[0].sender;
  Planned early = planned_at(5), late = planned_at(50);
  early.after.jump_at = 4, early.after.jump_gap = 900;
  late.after.jump_at = 40, late.after.jump_gap = 2;
  raise_cursors(sender, late);
  raise_cursors(sender, early);
  EXPECT_EQ(sender.tail, late.after.tail);
  EXPECT_EQ(pipes::load(sender).jump_at, 40u);
  EXPECT_EQ(pipes::load(sender).jump_gap, 2u);
}

}  // namespace
}  // namespace clan

#include "plugins/mpi/channel/channel_grants.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "support/interleaving.h"
#include "support/model_checks.h"

namespace clan::mpi {
namespace {

using testing::Model;
using testing::ModelAtomic;
using testing::Report;

constexpr NodeId kRank{0x100}, kOther{0x200}, kGone{0x300}, kSecond{0x400};
constexpr std::uint64_t word_of(NodeId node, ChannelState state) { return owner_word(node, state); }

/// A segment of the model with two channels.
struct Table {
  Table(Model& m, std::uint32_t size, std::uint64_t first_owner)
      : size_(size),
        owners_{m.word<std::uint64_t>("owner 0", first_owner),
                m.word<std::uint64_t>("owner 1", std::uint64_t{0})},
        closed_(m.word<std::uint32_t>("closed")) {}
  std::uint32_t size() const { return size_; }
  std::uint32_t used() const { return size_; }
  void use(std::uint32_t) const {}
  ModelAtomic<std::uint64_t> owner(std::uint32_t i) const { return owners_[i]; }
  ModelAtomic<std::uint32_t> closed() const { return closed_; }
  bool leaving(std::uint32_t) const { return false; }

  std::uint32_t size_;
  std::array<ModelAtomic<std::uint64_t>, 2> owners_;
  ModelAtomic<std::uint32_t> closed_;
};

struct Scenario {
  std::uint32_t channels = 1;
  std::uint64_t first_owner = 0;
  bool another_asks = false;  ///< a third rank, for itself
  bool one_leaves = false;    ///< the first channel's owner gives it back at any time
  bool refuses = false;       ///< the owner cannot reach the rank
  bool rank_dies = false;
};

/// The segment's owner and the rank ask at once. Both answers are the same, no channel is lost.
Report run(const Scenario& s) {
  Model m;
  const Table table(m, s.channels, s.first_owner);
  auto owner_yes = m.ghost("owner: yes"), owner_no = m.ghost("owner: no");
  auto rank_yes = m.ghost("rank: yes"), rank_no = m.ghost("rank: no");
  auto stopped = m.word<std::uint32_t>("stopped");
  const auto owner = m.thread("owner", [=](std::uint64_t) {
    const bool yes = s.refuses ? !refuse_rank(table, kRank) : grant_channel(table, kRank);
    (yes ? owner_yes : owner_no).add(1);
  });
  const auto rank = m.thread(
      "rank", [=](std::uint64_t) { (take_channel(table, kRank) ? rank_yes : rank_no).add(1); });
  if (s.rank_dies) m.may_stop(rank, stopped);
  if (s.another_asks) m.thread("other", [=](std::uint64_t) { take_channel(table, kOther); });
  if (s.one_leaves) {
    m.thread("gone", [=](std::uint64_t) {
      table.owner(0).store(0, std::memory_order_release);  // give_back()
    });
  }
  m.at_end([=](const Model::End& end) -> std::string {
    if (!end.done(owner)) return "the owner gets no answer";
    if (end.value(stopped) != 0) return {};
    if (end.value(owner_yes) != end.value(rank_yes)) return "one of them says yes, the other no";
    std::uint64_t taken = 0;
    for (std::uint32_t i = 0; i < s.channels; ++i) {
      const std::uint64_t word = end.value(table.owner(i));
      if (is_for(word, kRank, ChannelState::kTaken)) {
        ++taken;
      } else if ((word & ~kChannelStateBits) == kRank.value) {
        return "a channel is kept for a rank that does not need it";
      }
    }
    return taken == end.value(rank_yes) ? std::string() : "a yes without a channel";
  });
  return m.run();
}

TEST(Grant, IsOneChannelWhoeverAsksFirst) {
  expect_safe(run({.channels = 1}));
  expect_safe(run({.channels = 2}));
}

TEST(Grant, IsOneAnswerWhereNoChannelIsFree) {
  expect_safe(run({.channels = 1, .first_owner = word_of(kGone, ChannelState::kTaken)}));
}

TEST(Grant, IsOneAnswerWhereTheLastChannelIsGivenBackMeanwhile) {
  expect_safe(run(
      {.channels = 1, .first_owner = word_of(kGone, ChannelState::kTaken), .one_leaves = true}));
  expect_safe(run(
      {.channels = 2, .first_owner = word_of(kGone, ChannelState::kTaken), .one_leaves = true}));
}

TEST(Grant, IsOneAnswerWhereAnotherRankWantsTheSameChannel) {
  expect_safe(run({.channels = 1, .another_asks = true}));
  expect_safe(run({.channels = 1,
                   .first_owner = word_of(kGone, ChannelState::kTaken),
                   .another_asks = true,
                   .one_leaves = true}));
}

TEST(Grant, IsOneAnswerWhereTheOwnerCannotReachTheRank) {
  expect_safe(run({.channels = 1, .refuses = true}));
  expect_safe(run({.channels = 2, .refuses = true}));
}

TEST(Grant, OfARankThatDiesKeepsNoOneWaiting) {
  expect_safe(run({.channels = 1, .another_asks = true, .rank_dies = true}));
}

/// Two ranks meet, each in the other's segment of one channel; what others have of these channels
/// comes and goes.
Report run_meeting(std::uint64_t first, std::uint64_t second, bool another_asks, bool one_leaves) {
  Model m;
  const Table one(m, 1, first), two(m, 1, second);
  auto yes = m.ghost("said yes"), no = m.ghost("said no");
  m.thread("one",
           [=](std::uint64_t) { (meet_both_ways(one, kRank, two, kSecond) ? yes : no).add(1); });
  m.thread("two",
           [=](std::uint64_t) { (meet_both_ways(two, kSecond, one, kRank) ? yes : no).add(1); });
  if (another_asks) m.thread("other", [=](std::uint64_t) { take_channel(two, kOther); });
  if (one_leaves) {
    m.thread("gone", [=](std::uint64_t) { two.owner(0).store(0, std::memory_order_release); });
  }
  m.at_end([=](const Model::End& end) -> std::string {
    if (end.value(yes) == 1) return "CLAN one way";
    const auto kept = [&](const Table& table, NodeId node) {
      return (end.value(table.owner(0)) & ~kChannelStateBits) == node.value;
    };
    const bool both = end.value(yes) == 2;
    return kept(one, kSecond) == both && kept(two, kRank) == both ? "" : "a channel too many";
  });
  return m.run();
}

TEST(Meeting, IsBothWaysOrNotAtAll) {
  const std::uint64_t gone = word_of(kGone, ChannelState::kTaken);
  expect_safe(run_meeting(0, 0, false, false));
  expect_safe(run_meeting(gone, 0, false, false));
  expect_safe(run_meeting(0, gone, false, true));
  expect_safe(run_meeting(0, 0, true, false));
}

/// Words of its own process, for what needs no model.
struct Plain {
  std::uint32_t size() const { return 3; }
  std::uint32_t used() const { return 3; }
  void use(std::uint32_t) const {}
  std::atomic<std::uint64_t>& owner(std::uint32_t i) const { return owners[i]; }
  std::atomic<std::uint32_t>& closed() const { return closed_; }
  bool leaving(std::uint32_t i) const { return left == static_cast<int>(i); }
  mutable std::array<std::atomic<std::uint64_t>, 3> owners{};
  mutable std::atomic<std::uint32_t> closed_{0};
  int left = -1;
};

TEST(Grant, IsGivenToARankThatHasLeftAndComesAgain) {
  Plain table;
  ASSERT_EQ(take_channel(table, kRank), 0u);
  table.left = 0;
  EXPECT_TRUE(grant_channel(table, kRank));
  EXPECT_EQ(table.owners[1].load(), word_of(kRank, ChannelState::kGranted))
      << "the old one is on its way out";
  EXPECT_EQ(take_channel(table, kRank), 1u);
}

TEST(Grant, IsNeverGivenAgainWhereItHasBeenRefused) {
  Plain table;
  ASSERT_TRUE(take_channel(table, kOther));
  EXPECT_TRUE(refuse_rank(table, kRank));
  EXPECT_FALSE(take_channel(table, kRank)) << "two channels are free";
  EXPECT_FALSE(take_channel(table, kGone)) << "the segment is closed to all that it has not met";
  EXPECT_TRUE(grant_channel(table, kOther)) << "it has met that one";
  EXPECT_FALSE(refuse_rank(table, kOther)) << "it has come";
}

}  // namespace
}  // namespace clan::mpi

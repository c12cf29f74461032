#include "net/poller_election.h"

#include <gtest/gtest.h>

namespace clan::preload {
namespace {

constexpr std::uint64_t kMs = 1'000'000;
constexpr pid_t kOne = 11, kOther = 12;

struct Duty : testing::Test {
  bool begin(pid_t thread, bool may_fetch = true) { return election.begin(thread, may_fetch, now); }
  /// One thread sleeps often, and has the duty now.
  void give() {
    EXPECT_FALSE(begin(kOne));
    EXPECT_FALSE(election.end(kOne));
    EXPECT_TRUE(begin(kOne));
  }

  PollerElection election;
  std::uint64_t now = 1000 * kMs;
};

TEST_F(Duty, IsOfAThreadThatSleepsOften) {
  EXPECT_FALSE(begin(kOne)) << "it may not come back";
  EXPECT_TRUE(election.is_wanted());
  EXPECT_FALSE(election.is_seen_to(now, 0));
  EXPECT_FALSE(election.end(kOne));
  now += kMs;
  EXPECT_TRUE(begin(kOne));
  EXPECT_FALSE(election.is_wanted());
  EXPECT_TRUE(election.is_seen_to(now, 0));
  EXPECT_TRUE(election.end(kOne));
}

TEST_F(Duty, IsNotOfOneWhoseSleepsAreFarApart) {
  for (int i = 0; i < 3; ++i, now += PollerElection::kLastsNs) {
    EXPECT_FALSE(begin(kOne));
    EXPECT_FALSE(election.end(kOne));
  }
}

TEST_F(Duty, WaitsAMomentForAThreadThatIsAwake) {
  give();
  EXPECT_TRUE(election.end(kOne));
  EXPECT_TRUE(election.is_seen_to(now + PollerElection::kLastsNs - 1, 0));
  EXPECT_FALSE(election.is_seen_to(now + PollerElection::kLastsNs, 0));
}

TEST_F(Duty, EndsWhileItsThreadSleepsLong) {
  give();
  now += PollerElection::kLastsNs;
  EXPECT_FALSE(election.is_seen_to(now, 0));
  election.take();
  EXPECT_TRUE(election.is_wanted()) << "it sleeps on";
  EXPECT_FALSE(election.end(kOne));
  EXPECT_FALSE(election.is_wanted());
  EXPECT_FALSE(begin(kOne));
}

TEST_F(Duty, IsLeftToAThreadThatSendsUnlessOthersSleep) {
  EXPECT_TRUE(election.is_seen_to(now, now));
  EXPECT_TRUE(election.is_seen_to(now, now - PollerElection::kWorksNs + 1));
  EXPECT_FALSE(election.is_seen_to(now, now - PollerElection::kWorksNs));
  EXPECT_FALSE(begin(kOther));
  EXPECT_FALSE(election.is_seen_to(now, now)) << "the one that sends may do something else";
  EXPECT_FALSE(election.end(kOther));
  EXPECT_TRUE(election.is_seen_to(now, now));
}

TEST_F(Duty, IsNotOfOneOfSeveralThatSleep) {
  EXPECT_FALSE(begin(kOne));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(begin(kOther));
    EXPECT_FALSE(election.end(kOther));
  }
  EXPECT_TRUE(election.is_wanted());
}

TEST_F(Duty, StaysWithItsThreadWhenAnotherFallsAsleep) {
  give();
  EXPECT_FALSE(begin(kOther));
  EXPECT_TRUE(election.is_seen_to(now, 0));
  EXPECT_TRUE(election.end(kOne));
  EXPECT_TRUE(election.is_wanted()) << "the other sleeps, and nobody fetches";
  EXPECT_FALSE(election.is_seen_to(now, 0));
  EXPECT_FALSE(begin(kOne)) << "it is one of two now";
}

TEST_F(Duty, IsNotRenewedByOthersWhenItsThreadHasGone) {
  give();
  for (int i = 0; i < 4; ++i, now += kMs) {
    EXPECT_FALSE(begin(kOther));
    EXPECT_FALSE(election.end(kOther));
  }
  EXPECT_FALSE(election.is_seen_to(now, 0));
}

TEST_F(Duty, OfAThreadThatHasJumpedAwayIsItsOwnAgain) {
  give();  // and it says nothing when it wakes
  EXPECT_TRUE(begin(kOne));
  EXPECT_TRUE(election.end(kOne));
  EXPECT_FALSE(election.is_wanted());
  EXPECT_TRUE(begin(kOne));
  now += PollerElection::kLastsNs;
  election.take();
  EXPECT_FALSE(begin(kOne));
  EXPECT_FALSE(election.end(kOne));
  EXPECT_FALSE(election.is_wanted());
}

TEST_F(Duty, IsNotOfAThreadThatMayNot) {
  give();
  EXPECT_TRUE(election.end(kOne));
  EXPECT_FALSE(begin(kOne, false));
  EXPECT_TRUE(election.is_wanted());
}

}  // namespace
}  // namespace clan::preload

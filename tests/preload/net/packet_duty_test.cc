#include "net/packet_duty.h"

#include <gtest/gtest.h>

namespace clan::preload {
namespace {

constexpr std::uint64_t kMs = 1'000'000;
constexpr pid_t kOne = 11, kOther = 12;

struct Duty : testing::Test {
  bool begin(pid_t thread, bool may_fetch = true) { return duty.begin(thread, may_fetch, now); }
  /// One thread sleeps often, and has the duty now.
  void give() {
    EXPECT_FALSE(begin(kOne));
    EXPECT_FALSE(duty.end(kOne));
    EXPECT_TRUE(begin(kOne));
  }

  PacketDuty duty;
  std::uint64_t now = 1000 * kMs;
};

TEST_F(Duty, IsOfAThreadThatSleepsOften) {
  EXPECT_FALSE(begin(kOne)) << "it may not come back";
  EXPECT_TRUE(duty.is_wanted());
  EXPECT_FALSE(duty.is_seen_to(now, 0));
  EXPECT_FALSE(duty.end(kOne));
  now += kMs;
  EXPECT_TRUE(begin(kOne));
  EXPECT_FALSE(duty.is_wanted());
  EXPECT_TRUE(duty.is_seen_to(now, 0));
  EXPECT_TRUE(duty.end(kOne));
}

TEST_F(Duty, IsNotOfOneWhoseSleepsAreFarApart) {
  for (int i = 0; i < 3; ++i, now += PacketDuty::kLastsNs) {
    EXPECT_FALSE(begin(kOne));
    EXPECT_FALSE(duty.end(kOne));
  }
}

TEST_F(Duty, WaitsAMomentForAThreadThatIsAwake) {
  give();
  EXPECT_TRUE(duty.end(kOne));
  EXPECT_TRUE(duty.is_seen_to(now + PacketDuty::kLastsNs - 1, 0));
  EXPECT_FALSE(duty.is_seen_to(now + PacketDuty::kLastsNs, 0));
}

TEST_F(Duty, EndsWhileItsThreadSleepsLong) {
  give();
  now += PacketDuty::kLastsNs;
  EXPECT_FALSE(duty.is_seen_to(now, 0));
  duty.take();
  EXPECT_TRUE(duty.is_wanted()) << "it sleeps on";
  EXPECT_FALSE(duty.end(kOne));
  EXPECT_FALSE(duty.is_wanted());
  EXPECT_FALSE(begin(kOne));
}

TEST_F(Duty, IsLeftToAThreadThatSendsUnlessOthersSleep) {
  EXPECT_TRUE(duty.is_seen_to(now, now));
  EXPECT_TRUE(duty.is_seen_to(now, now - PacketDuty::kWorksNs + 1));
  EXPECT_FALSE(duty.is_seen_to(now, now - PacketDuty::kWorksNs));
  EXPECT_FALSE(begin(kOther));
  EXPECT_FALSE(duty.is_seen_to(now, now)) << "the one that sends may do something else";
  EXPECT_FALSE(duty.end(kOther));
  EXPECT_TRUE(duty.is_seen_to(now, now));
}

TEST_F(Duty, IsNotOfOneOfSeveralThatSleep) {
  EXPECT_FALSE(begin(kOne));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(begin(kOther));
    EXPECT_FALSE(duty.end(kOther));
  }
  EXPECT_TRUE(duty.is_wanted());
}

TEST_F(Duty, StaysWithItsThreadWhenAnotherFallsAsleep) {
  give();
  EXPECT_FALSE(begin(kOther));
  EXPECT_TRUE(duty.is_seen_to(now, 0));
  EXPECT_TRUE(duty.end(kOne));
  EXPECT_TRUE(duty.is_wanted()) << "the other sleeps, and nobody fetches";
  EXPECT_FALSE(duty.is_seen_to(now, 0));
  EXPECT_FALSE(begin(kOne)) << "it is one of two now";
}

TEST_F(Duty, IsNotRenewedByOthersWhenItsThreadHasGone) {
  give();
  for (int i = 0; i < 4; ++i, now += kMs) {
    EXPECT_FALSE(begin(kOther));
    EXPECT_FALSE(duty.end(kOther));
  }
  EXPECT_FALSE(duty.is_seen_to(now, 0));
}

TEST_F(Duty, OfAThreadThatHasJumpedAwayIsItsOwnAgain) {
  give();  // and it says nothing when it wakes
  EXPECT_TRUE(begin(kOne));
  EXPECT_TRUE(duty.end(kOne));
  EXPECT_FALSE(duty.is_wanted());
  EXPECT_TRUE(begin(kOne));
  now += PacketDuty::kLastsNs;
  duty.take();
  EXPECT_FALSE(begin(kOne));
  EXPECT_FALSE(duty.end(kOne));
  EXPECT_FALSE(duty.is_wanted());
}

TEST_F(Duty, IsNotOfAThreadThatMayNot) {
  give();
  EXPECT_TRUE(duty.end(kOne));
  EXPECT_FALSE(begin(kOne, false));
  EXPECT_TRUE(duty.is_wanted());
}

}  // namespace
}  // namespace clan::preload

#include "link/udp/node/autocork.h"

#include <gtest/gtest.h>

namespace clan::udp {
namespace {

constexpr std::uint64_t kStart = 1'000'000'000;

TEST(Autocork, TheFirstMessageSinceALookLeavesAtOnce) {
  Autocork cork;
  for (int i = 0; i < 3; ++i) {
    cork.look();
    EXPECT_FALSE(cork.holds(kStart));
    cork.leave(kStart);
    EXPECT_FALSE(cork.any());
  }
}

TEST(Autocork, LaterOnesWaitUntilAllLeaves) {
  Autocork cork;
  (void)cork.holds(kStart);
  EXPECT_TRUE(cork.holds(kStart + 10));
  EXPECT_TRUE(cork.holds(kStart + 20));
  EXPECT_TRUE(cork.any());
  cork.leave(kStart + 30);
  EXPECT_FALSE(cork.any());
  EXPECT_TRUE(cork.holds(kStart + 40)) << "the thread has not looked";
}

TEST(Autocork, WhatWouldFillAPacketDoesNotWait) {
  Autocork cork;
  (void)cork.holds(kStart);
  cork.leave(kStart);
  cork.add(Autocork::kMostBytes / 2);
  EXPECT_TRUE(cork.holds(kStart));
  cork.add(Autocork::kMostBytes / 2);
  EXPECT_FALSE(cork.holds(kStart));
  cork.leave(kStart);
  cork.add(1);
  EXPECT_TRUE(cork.holds(kStart)) << "what has left counts no more";
}

TEST(Autocork, NoneWaitsLongerThanItsTime) {
  Autocork cork;
  (void)cork.holds(kStart);
  EXPECT_TRUE(cork.holds(kStart));
  EXPECT_TRUE(cork.holds(kStart + Autocork::kMostNs));
  EXPECT_FALSE(cork.holds(kStart + Autocork::kMostNs + 1));
}

/// Holds one and lets it leave `late` ns after; then how long none is held.
std::uint64_t barred_after(Autocork& cork, std::uint64_t* now, std::uint64_t late) {
  (void)cork.holds(*now);
  EXPECT_TRUE(cork.holds(*now));
  *now += late;
  cork.leave(*now);
  std::uint64_t barred = 0;
  while (!cork.holds(*now + barred)) barred += Autocork::kLeastBarNs / 2;
  *now += barred;
  cork.leave(*now);
  return barred;
}

TEST(Autocork, OneThatHasWaitedTooLongBarsOthersTwiceAsLongEachTime) {
  Autocork cork;
  std::uint64_t now = kStart;
  constexpr std::uint64_t kLate = Autocork::kMostNs + 1;
  // What leaves in time in between is what barred_after() finds; so bars begin anew.
  EXPECT_EQ(barred_after(cork, &now, kLate), Autocork::kLeastBarNs);
  EXPECT_EQ(barred_after(cork, &now, kLate), Autocork::kLeastBarNs);
  std::uint64_t bar = Autocork::kLeastBarNs;
  for (int i = 0; i < 20; ++i, bar = std::min(2 * bar, Autocork::kMostBarNs)) {
    EXPECT_TRUE(cork.holds(now));
    now += kLate;
    cork.leave(now);
    EXPECT_FALSE(cork.holds(now + bar - 1));
    now += bar;
  }
}

TEST(Autocork, WhereAllLeavesInTimeNothingIsBarred) {
  Autocork cork;
  std::uint64_t now = kStart;
  EXPECT_EQ(barred_after(cork, &now, Autocork::kMostNs), 0u);
}

}  // namespace
}  // namespace clan::udp

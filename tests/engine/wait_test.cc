#include "clan/wait.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "clan/preemption.h"

namespace clan {
namespace {

constexpr std::uint64_t kMs = 1'000'000;

TEST(Contention, IsNotSeenInTheShortPausesOfAThread) {
  Contention contention;
  contention.note_gap(1000 * kMs, kMs / 2);
  EXPECT_FALSE(contention.known());
  EXPECT_FALSE(contention.lasts(1000 * kMs));
}

TEST(Contention, LastsFourTimesAsLongAsTheThreadWasAway) {
  Contention contention;
  contention.note_gap(1000 * kMs, 3 * kMs);
  EXPECT_TRUE(contention.lasts(1011 * kMs));
  EXPECT_FALSE(contention.lasts(1013 * kMs));
}

TEST(Contention, LastsLongerEachTimeItIsSeenAgainSoon) {
  Contention contention;
  std::uint64_t now = 1000 * kMs, lasted = 0;
  for (int k = 0; k < 8; ++k) {
    contention.note_gap(now, 3 * kMs);
    std::uint64_t end = now;
    while (contention.lasts(end)) end += kMs;
    EXPECT_GE(end - now, lasted);
    lasted = end - now;
    now = end + 3 * kMs;
  }
  EXPECT_GE(lasted, 1000 * kMs);
  EXPECT_LE(lasted, 3000 * kMs);
  now += 10'000 * kMs;  // calm for long
  contention.note_gap(now, 3 * kMs);
  EXPECT_FALSE(contention.lasts(now + 13 * kMs));
}

TEST(Waiter, EndsAtOnceWhenItIsReady) {
  Waiter waiter{WaitOptions{}};
  int looks = 0;
  EXPECT_TRUE(waiter.spin([&] { return ++looks == 1; }, Awaited{}));
  EXPECT_EQ(looks, 1);
}

TEST(Waiter, EndsWhenTheLookBesideSaysSo) {
  Waiter waiter{WaitOptions{WaitOptions::Mode::kPoll}};
  int looks = 0;
  EXPECT_TRUE(waiter.spin([] { return false; }, Awaited{}, kNoDeadline, [&] { return ++looks == 3; }));
  EXPECT_EQ(looks, 3);
}

TEST(Waiter, DoesNotSleepForWhatIsThere) {
  Waiter waiter{WaitOptions{}};
  const auto sleep = [] {
    ADD_FAILURE() << "slept";
    return true;
  };
  EXPECT_EQ(waiter.wait([] { return true; }, Awaited{}, kNoDeadline, sleep), Waited::kReady);
}

TEST(Waiter, SleepsOnceForWhatIsNotThere) {
  Waiter waiter{WaitOptions{}};
  int sleeps = 0;
  EXPECT_EQ(waiter.wait([] { return false; }, Awaited{}, kNoDeadline, [&] { return ++sleeps > 0; }), Waited::kAgain);
  EXPECT_EQ(sleeps, 1);
}

TEST(Waiter, DoesNotSleepAfterItsDeadline) {
  Waiter waiter{WaitOptions{}};
  int sleeps = 0;
  const auto sleep = [&] { return ++sleeps > 0; };
  EXPECT_EQ(waiter.wait([] { return false; }, Awaited{}, monotonic_ns(), sleep), Waited::kTimedOut);
  EXPECT_EQ(sleeps, 0);
}

TEST(Waiter, ThatPollsNeverSleeps) {
  Waiter waiter{WaitOptions{WaitOptions::Mode::kPoll}};
  int sleeps = 0;
  const auto sleep = [&] { return ++sleeps > 0; };
  EXPECT_EQ(waiter.wait([] { return false; }, Awaited{}, kNoDeadline, sleep), Waited::kAgain);
  EXPECT_EQ(sleeps, 0);
}

// Waits that took long, and slept.
void sleep_long(Waiter& waiter, int times) {
  for (int k = 0; k < times; ++k) {
    EXPECT_FALSE(waiter.spin([] { return false; }, Awaited{0, true}));
    ::usleep(2000);
    waiter.slept();
  }
}

TEST(Waiter, HardlySpinsWhenItsWaitsAreLong) {
  Waiter waiter{WaitOptions{}};
  sleep_long(waiter, 20);
  EXPECT_LE(waiter.budget_ns(), 5000u);
}

TEST(Waiter, SpinsAgainWhenItsWaitsAreShort) {
  Waiter waiter{WaitOptions{}};
  sleep_long(waiter, 20);
  for (int k = 0; k < 30; ++k) {
    int looks = 0;
    EXPECT_TRUE(waiter.spin([&] { return ++looks == 10; }, Awaited{}));
  }
  EXPECT_GE(waiter.budget_ns(), 50'000u);
}

TEST(Waiter, NeverSpinsWhenItIsToSleep) {
  Waiter waiter{WaitOptions{WaitOptions::Mode::kSleep}};
  int looks = 0;
  EXPECT_FALSE(waiter.spin([&] { return ++looks > 1; }, Awaited{}));
  EXPECT_EQ(looks, 1);
}

TEST(PreemptionWatch, SeesThatTheThreadHasBeenOffItsProcessor) {
  PreemptionWatch watch;
  ::usleep(1000);
  EXPECT_TRUE(watch.happened());
}

TEST(PreemptionWatch, SeesNothingWhereNothingHappened) {
  int calm = 0;
  for (int k = 0; k < 100; ++k) {
    PreemptionWatch watch;
    calm += !watch.happened();
  }
#if defined(CLAN_HAS_RSEQ)
  EXPECT_GT(calm, __rseq_size != 0 ? 50 : -1);
#else
  EXPECT_EQ(calm, 0);
#endif
}

}  // namespace
}  // namespace clan

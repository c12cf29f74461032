#include "clan/face/wait.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

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

TEST(Contention, IsCrowdedWhileOthersRunInItsYields) {
  Contention contention;
  EXPECT_FALSE(contention.crowded());
  for (int k = 0; k < 4; ++k) contention.note_yield(1000 * kMs, 2'000, true);
  EXPECT_TRUE(contention.crowded());
  for (int k = 0; k < 4; ++k) contention.note_yield(1000 * kMs, 200, false);
  EXPECT_FALSE(contention.crowded());
}

// Many yields of `short_ns`, each thousandth of which takes `long_ns`.
Contention after_yields(std::uint64_t short_ns, std::uint64_t long_ns) {
  Contention contention;
  std::uint64_t now = 1000 * kMs;
  for (int k = 0; k < 10'000; ++k) {
    const std::uint64_t took = k % 1000 == 500 ? long_ns : short_ns;
    now += took;
    contention.note_yield(now, took, true);
  }
  return contention;
}

TEST(Contention, DoesNotTakeACrowdForAComputation) {
  const Contention contention = after_yields(20'000, 2 * kMs);
  EXPECT_FALSE(contention.known());
  EXPECT_TRUE(contention.crowded());
}

// A computation of nice 19 runs in one yield of many, and until the scheduler's next tick.
TEST(Contention, TakesRareLongYieldsForAComputationWhereTheyTakeAQuarterOfTheTime) {
  EXPECT_TRUE(after_yields(3'000, 4 * kMs).known());
}

TEST(Contention, TakesTwoLongYieldsInARowForAComputation) {
  Contention contention;
  contention.note_yield(1000 * kMs, 3 * kMs, true);
  EXPECT_FALSE(contention.known());
  contention.note_yield(1003 * kMs, 3 * kMs, true);
  EXPECT_TRUE(contention.lasts(1010 * kMs));
}

// A hypervisor took the processor, twice.
TEST(Contention, DoesNotTakeALongYieldInWhichNobodyRanForAComputation) {
  Contention contention;
  contention.note_yield(1000 * kMs, 3 * kMs, false);
  contention.note_yield(1003 * kMs, 3 * kMs, false);
  EXPECT_FALSE(contention.known());
}

long switches() {
  rusage usage{};
  EXPECT_EQ(::getrusage(RUSAGE_THREAD, &usage), 0);
  return usage.ru_nvcsw + usage.ru_nivcsw;
}

// Whatever a yield costs on this machine.
TEST(Contention, CountsAYieldOnlyIfTheKernelHasSwitched) {
  if (!PreemptionWatch::works()) GTEST_SKIP() << "the C library registers no rseq area";
  Contention contention;
  PreemptionWatch watch;
  std::uint64_t now = monotonic_ns();
  int counted = 0;
  for (int k = 0; k < 2000; ++k) {
    const long before = switches();
    if (contention.yield(now, watch) && switches() == before) ++counted;
  }
  // The kernel notes a move to another processor as it notes a switch.
  EXPECT_LT(counted, 20) << "yields without one";
}

TEST(Waiter, EndsAtOnceWhenItIsReady) {
  Waiter waiter{WaitOptions{}};
  int looks = 0;
  EXPECT_TRUE(waiter.spin([&] { return ++looks == 1; }, PeerHint{}));
  EXPECT_EQ(looks, 1);
}

TEST(Waiter, EndsWhenTheLookBesideSaysSo) {
  Waiter waiter{WaitOptions{WaitOptions::Mode::kPoll}};
  int looks = 0;
  EXPECT_TRUE(
      waiter.spin([] { return false; }, PeerHint{}, kNoDeadline, [&] { return ++looks == 3; }));
  EXPECT_EQ(looks, 3);
}

TEST(Waiter, LooksBesideAfterAFewHundredLooks) {
  constexpr int kMost = 300;  // a first burst, and one of the others
  int beside = 0;
  for (int k = 0; k < 100; ++k) {
    Waiter waiter{WaitOptions{}};
    int looks = 0;
    const auto look = [&] {
      ++beside;
      EXPECT_LE(looks, kMost);
      return true;
    };
    (void)waiter.spin([&] { return ++looks < 0; }, {}, kNoDeadline, look);
  }
  if (beside == 0) GTEST_SKIP() << "other threads keep the processor: a wait sleeps at once";
}

TEST(Waiter, LooksBesideTheLessOftenTheLongerThatTakes) {
  constexpr std::uint64_t kSpinNs = 4 * kMs, kLookNs = 20'000;
  Waiter waiter{WaitOptions{WaitOptions::Mode::kAdaptive, kSpinNs / 2 / 1000}};
  std::uint64_t beside = 0;
  const auto look = [&] {
    ++beside;
    const std::uint64_t end = monotonic_ns() + kLookNs;
    while (monotonic_ns() < end) {
    }
    return false;
  };
  EXPECT_FALSE(waiter.spin([] { return false; }, {}, kNoDeadline, look));
  EXPECT_LE(beside, 1 + kSpinNs / (10 * kLookNs));
}

TEST(Waiter, DoesNotSleepForWhatIsThere) {
  Waiter waiter{WaitOptions{}};
  const auto sleep = [] {
    ADD_FAILURE() << "slept";
    return true;
  };
  EXPECT_EQ(waiter.wait([] { return true; }, PeerHint{}, kNoDeadline, sleep), WaitResult::kReady);
}

TEST(Waiter, SleepsOnceForWhatIsNotThere) {
  Waiter waiter{WaitOptions{}};
  int sleeps = 0;
  EXPECT_EQ(
      waiter.wait([] { return false; }, PeerHint{}, kNoDeadline, [&] { return ++sleeps > 0; }),
      WaitResult::kAgain);
  EXPECT_EQ(sleeps, 1);
}

TEST(Waiter, DoesNotSleepAfterItsDeadline) {
  Waiter waiter{WaitOptions{}};
  int sleeps = 0;
  const auto sleep = [&] { return ++sleeps > 0; };
  EXPECT_EQ(waiter.wait([] { return false; }, PeerHint{}, monotonic_ns(), sleep),
            WaitResult::kTimedOut);
  EXPECT_EQ(sleeps, 0);
}

TEST(Waiter, ThatPollsNeverSleeps) {
  Waiter waiter{WaitOptions{WaitOptions::Mode::kPoll}};
  int sleeps = 0;
  const auto sleep = [&] { return ++sleeps > 0; };
  EXPECT_EQ(waiter.wait([] { return false; }, PeerHint{}, kNoDeadline, sleep), WaitResult::kAgain);
  EXPECT_EQ(sleeps, 0);
}

// Waits that took long, and slept.
void sleep_long(Waiter& waiter, int times, unsigned sleep_ms = 2) {
  for (int k = 0; k < times; ++k) {
    EXPECT_FALSE(waiter.spin([] { return false; }, PeerHint{0, true}));
    ::usleep(sleep_ms * 1000);
    waiter.slept();
  }
}

TEST(Waiter, HardlySpinsWhenItsWaitsAreLong) {
  Waiter waiter{WaitOptions{}};
  sleep_long(waiter, 20);
  EXPECT_LE(waiter.budget_ns(), 5000u);
}

TEST(Waiter, SleepsAfterAFewLooksWhenItsWaitsAreVeryLong) {
  Waiter waiter{WaitOptions{}};
  sleep_long(waiter, 20);
  int looks = 0, beside = 0;
  const auto ready = [&] { return ++looks < 0; };
  const PeerHint on_this_processor{current_cpu_tag()};
  EXPECT_FALSE(waiter.spin(ready, PeerHint{}, kNoDeadline, [&] { return ++beside < 0; }));
  EXPECT_FALSE(waiter.spin(ready, on_this_processor, kNoDeadline, [&] { return ++beside < 0; }));
  EXPECT_LE(looks, 100);
  EXPECT_EQ(beside, 0);
}

TEST(Waiter, SpinsAgainWhenItsWaitsAreShort) {
  Waiter waiter{WaitOptions{}};
  sleep_long(waiter, 20);
  for (int k = 0; k < 30; ++k) {
    int looks = 0;
    const bool there = waiter.spin([&] { return ++looks == 10; }, PeerHint{});
    if (t_contention.known()) GTEST_SKIP() << "others want the processor: a wait sleeps sooner";
    EXPECT_TRUE(there);
  }
  EXPECT_GE(waiter.budget_ns(), 50'000u);
}

// Waits longer than a spin, and short enough for tries. Yielding takes none of them away.
TEST(Waiter, DoesNotYieldToAPeerWhoseAnswersTakeLong) {
  Waiter waiter{WaitOptions{WaitOptions::Mode::kAdaptive, 2000}};
  sleep_long(waiter, 20, 3);
  int beside = 0;
  const auto look = [&] { return ++beside < 0; };
  for (int k = 0; k < 16; ++k)  // which may be tries
    EXPECT_FALSE(waiter.spin([] { return false; }, PeerHint{}, kNoDeadline, look));
  if (t_contention.known()) GTEST_SKIP() << "others want the processor: a wait sleeps sooner";
  beside = 0;
  const PeerHint on_this_processor{current_cpu_tag()};
  EXPECT_FALSE(waiter.spin([] { return false; }, on_this_processor, kNoDeadline, look));
  EXPECT_EQ(beside, 0);
}

TEST(Waiter, SpinsForAPeerThatHasLeftItsProcessor) {
  t_contention = {};
  Waiter waiter{WaitOptions{WaitOptions::Mode::kAdaptive, 2000}};
  const std::uint64_t end = monotonic_ns() + kMs;
  const bool there =
      waiter.spin([&] { return monotonic_ns() >= end; }, PeerHint{current_cpu_tag()});
  EXPECT_TRUE(there || t_contention.known()) << "no computation was beside it, and it did not spin";
}

TEST(WaitHistory, TriesSeveralTimesInARowWhatWaitsTakeThatDoNotSleep) {
  WaitHistory past(50'000);
  for (int k = 0; k < 50; ++k) past.expect(100'000);  // longer than a spin, not very long
  int tries = 0, runs = 0;
  bool tried = true;  // it begins with the rest of a row
  for (int k = 0; k < 2 * 1024; ++k) {
    bool tries_now = false;
    const std::uint64_t budget = past.next_budget(false, &tries_now);
    EXPECT_EQ(budget, tries_now ? 100'000u : 0u);
    tries += tries_now;
    runs += tries_now && !tried;
    tried = tries_now;
  }
  EXPECT_EQ(tries, 2 * 16);
  EXPECT_EQ(runs, 2);
}

// A try finds out. It spins for so long that others which run in its yields do not keep it from
// that; a computation beside it may.
TEST(Waiter, LearnsFromATryWhatWaitsTakeThatDoNotSleep) {
  constexpr unsigned kMostMs = 200;
  Waiter waiter{WaitOptions{WaitOptions::Mode::kAdaptive, kMostMs * 1000}};
  sleep_long(waiter, 2, 3 * kMostMs);  // longer than it spins, not so long that it tries no more
  ASSERT_LT(waiter.budget_ns(), kMostMs * kMs);
  bool has_learned = false;
  for (int k = 0; k < 2 * 1024 && !has_learned; ++k) {
    int looks = 0;
    const bool there = waiter.spin([&] { return ++looks > 256 + 500; }, PeerHint{});
    has_learned = there && waiter.budget_ns() >= kMostMs * kMs;
  }
  EXPECT_TRUE(has_learned || t_contention.known());
}

TEST(Waiter, WaitsForAPeerThatWorksHoweverLongWaitsWere) {
  Waiter waiter{WaitOptions{}};
  sleep_long(waiter, 8);
  const std::uint64_t end = monotonic_ns() + 2 * kMs;
  const bool there =
      waiter.spin([&] { return monotonic_ns() >= end; }, PeerHint{0, true, end + 1000 * kMs});
  EXPECT_TRUE(there || t_contention.known()) << "no computation was beside it, and it did not spin";
}

// Two threads on one processor that know nothing of each other's place take turns by their yields.
TEST(Waiter, TakesTurnsWithAThreadOnItsProcessor) {
  cpu_set_t before, one;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  CPU_SET(::sched_getcpu(), &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  std::atomic<int> turn{0};
  std::atomic<bool> seen{false};  // at the end it may have been forgotten
  const auto play = [&](int mine) {
    Waiter waiter{WaitOptions{}};
    for (int k = 0; k < 500; ++k) {
      while (!waiter.spin([&] { return turn.load() == mine; }, PeerHint{}))
        std::this_thread::yield();
      if (t_contention.crowded() || t_contention.known()) seen = true;
      turn.store(1 - mine);
    }
  };
  std::thread other(play, 1);
  play(0);
  other.join();
  EXPECT_TRUE(seen);
  ::sched_setaffinity(0, sizeof before, &before);
}

TEST(Waiter, NeverSpinsWhenItIsToSleep) {
  Waiter waiter{WaitOptions{WaitOptions::Mode::kSleep}};
  int looks = 0;
  EXPECT_FALSE(waiter.spin([&] { return ++looks > 1; }, PeerHint{}));
  EXPECT_EQ(looks, 1);
}

}  // namespace
}  // namespace clan

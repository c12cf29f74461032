#include "state/latch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "support/hand_over.h"

namespace clan::preload {
namespace {

TEST(Latch, StaysSetUntilItIsResetForTheNextConnection) {
  Latch flag;
  EXPECT_FALSE(flag);
  flag.set();
  flag.set();
  EXPECT_TRUE(flag);
  flag.reset();
  EXPECT_FALSE(flag);
}

TEST(Latch, TellsOneOfManyThreadsThatItWasTheFirst) {
  Latch flag;
  std::atomic<int> first{0}, cleared{0};
  const auto in_threads = [](auto what) {
    std::vector<std::thread> threads;
    for (int k = 0; k < 4; ++k) threads.emplace_back(what);
    for (auto& thread : threads) thread.join();
  };
  in_threads([&] { first += flag.set_first() ? 1 : 0; });
  EXPECT_EQ(first, 1);
  EXPECT_TRUE(flag);
  in_threads([&] { cleared += flag.clear() ? 1 : 0; });
  EXPECT_EQ(cleared, 1);
  EXPECT_FALSE(flag);
}

// A thread that has set its own flag sees the other's, or is seen by it: neither sleeps.
TEST(Latch, OfTwoThreadsThatSetTheirOwnAtLeastOneSeesTheOthers) {
  constexpr int kRounds = 20'000;
  std::vector<Latch> ours(kRounds), theirs(kRounds);
  std::atomic<int> ready{0};
  int missed_here = 0;
  std::vector<char> missed_there(kRounds), missed(kRounds);
  const auto play = [&](std::vector<Latch>& mine, std::vector<Latch>& others,
                        std::vector<char>& result) {
    for (int k = 0; k < kRounds; ++k) {
      ++ready;
      while (ready < 2 * (k + 1)) std::this_thread::yield();
      mine[static_cast<std::size_t>(k)].set();
      result[static_cast<std::size_t>(k)] = others[static_cast<std::size_t>(k)] ? 0 : 1;
    }
  };
  std::thread other([&] { play(theirs, ours, missed_there); });
  play(ours, theirs, missed);
  other.join();
  for (std::size_t k = 0; k < kRounds; ++k) missed_here += missed[k] != 0 && missed_there[k] != 0;
  EXPECT_EQ(missed_here, 0);
}

TEST(Latch, ShowsWhatWasDoneBeforeItWasSet) {
  Latch flag;
  int before = 0;
  test::hand_over([&] { before = 1, flag.set(); },
                  [&] {
                    EXPECT_TRUE(flag);
                    EXPECT_EQ(before, 1);
                  });
}

TEST(Latch, ShowsWhatWasDoneBeforeItWasFirstSet) {
  Latch flag;
  int before = 0;
  test::hand_over(
      [&] {
        before = 1;
        EXPECT_TRUE(flag.set_first());
      },
      [&] {
        EXPECT_TRUE(flag.clear());
        EXPECT_EQ(before, 1);
      });
}

TEST(Latch, ShowsWhatWasDoneBeforeItWasCleared) {
  Latch flag;
  int before = 0;
  flag.set();
  test::hand_over(
      [&] {
        before = 1;
        EXPECT_TRUE(flag.clear());
      },
      [&] {
        EXPECT_TRUE(flag.set_first());
        EXPECT_EQ(before, 1);
      });
}

}  // namespace
}  // namespace clan::preload

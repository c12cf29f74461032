// What threads that are about to sleep and those that fill queues tell each other, one call at a
// time; what comes with a word, for ThreadSanitizer. That no wake-up is lost is in
// wait_words_model_test.cc.
#include "wait/wait_words.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <thread>

namespace clan::ofi {
namespace {

struct Filled {
  int calls = 0, programs = 0;
};
Filled wake(WaitWords& words) {
  Filled filled;
  if (may_sleep(words)) {
    wake_sleepers(
        words, [&] { ++filled.calls; }, [&] { ++filled.programs; });
  }
  return filled;
}
constexpr auto kNothing = [] {};

TEST(WaitWords, FillADescriptorOncePerSleepAndOnlyOneThatSomebodySleepsOn) {
  WaitWords words;
  EXPECT_EQ(wake(words).calls, 0);
  ASSERT_TRUE(join_sleepers(words, kNothing));
  const Filled one = wake(words);
  EXPECT_EQ(one.calls, 1);
  EXPECT_EQ(one.programs, 0);
  EXPECT_EQ(wake(words).calls, 0);
  publish_shown(words);
  arm_shown(words, kNothing);
  EXPECT_EQ(wake(words).programs, 1);
}

TEST(WaitWords, KeepCallsAwayWhileOthersHaveToSeeThatTheDescriptorIsFull) {
  WaitWords words;
  int emptied = 0;
  const auto join = [&] { return join_sleepers(words, [&] { ++emptied; }); };
  ASSERT_TRUE(join());
  ASSERT_TRUE(join());
  leave_sleepers(words, true);
  EXPECT_FALSE(join()) << "the other one has not seen it";
  leave_sleepers(words, false);
  EXPECT_EQ(emptied, 0);
  EXPECT_TRUE(join());
  EXPECT_EQ(emptied, 1);
}

// A descriptor is plain here, and another one in each round.
TEST(WaitWords, PublishTheDescriptorThatProgramsSleepOn) {
  constexpr std::size_t kRounds = 200;
  std::array<WaitWords, kRounds> words;
  std::array<int, kRounds> descriptors{};
  std::thread other([&] {
    for (std::size_t i = 0; i < kRounds; ++i) {
      bool filled = false;
      while (!filled) {
        words[i].armed.store(true, std::memory_order_relaxed);  // as if a call had
        wake_sleepers(words[i], kNothing, [&] { filled = descriptors[i] == 7; });
        std::this_thread::yield();
      }
    }
  });
  for (std::size_t i = 0; i < kRounds; ++i) {
    descriptors[i] = 7;
    publish_shown(words[i]);
  }
  other.join();
}

// What a call has found is plain here, and another one's in each round.
TEST(WaitWords, ACallThatComesSeesWhatThoseBeforeItHaveLeft) {
  constexpr std::size_t kRounds = 200;
  WaitWords words;
  std::array<std::size_t, kRounds + 1> found{};
  std::thread other([&] {
    for (std::size_t round = 1; round <= kRounds; ++round) {
      while (words.sleepers.load(std::memory_order_relaxed) == 0) std::this_thread::yield();
      found[round] = round;
      leave_sleepers(words, true);
    }
  });
  for (std::size_t round = 1; round <= kRounds; ++round) {
    std::size_t before = 0;
    const auto empty = [&] { before = found[round - 1]; };
    EXPECT_TRUE(join_sleepers(words, empty));
    EXPECT_EQ(before, round - 1);
    // relaxed: it is for join_sleepers() to see what has been found
    while (words.sleepers.load(std::memory_order_relaxed) != 0) std::this_thread::yield();
  }
  other.join();
}

}  // namespace
}  // namespace clan::ofi

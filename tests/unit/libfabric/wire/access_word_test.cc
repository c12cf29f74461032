// Both sides of a small access, over one word of memory.
#include "wire/access_word.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace clan::ofi {
namespace {

TEST(AccessWord, IsServedOnceByATargetThatComesToIt) {
  SharedAccessWord word;
  prepare_access(word);
  int served = 0;
  EXPECT_EQ(serve_access(word, [&] { return ++served, true; }), kAccessDone);
  EXPECT_EQ(serve_access(word, [&] { return ++served, true; }), kAccessDone);
  EXPECT_EQ(served, 1);
  EXPECT_EQ(look_at_access(word), kAccessDone);
  AccessWord found;
  EXPECT_FALSE(take_access_back(word, &found));
  EXPECT_EQ(found, kAccessDone);
}

TEST(AccessWord, IsHeldFromTakingItBackUntilTheInitiatorHasEndedIt) {
  SharedAccessWord word;
  prepare_access(word);
  AccessWord found;
  ASSERT_TRUE(take_access_back(word, &found));
  const AccessWord state = serve_access(word, [] { return ADD_FAILURE(), true; });
  EXPECT_TRUE(is_initiators(state));
  EXPECT_TRUE(is_still_initiators(word));
  end_own_access(word, true);
  EXPECT_FALSE(is_still_initiators(word));
  EXPECT_EQ(look_at_access(word), kAccessDone);
}

TEST(AccessWord, GoesToTheInitiatorWhenTheTargetHasNoSuchMemory) {
  SharedAccessWord word;
  prepare_access(word);
  EXPECT_TRUE(is_initiators(serve_access(word, [] { return false; })));
  EXPECT_EQ(look_at_access(word), kAccessRefused);
  take_refused_access(word);
  EXPECT_TRUE(is_still_initiators(word));
  end_own_access(word, false);
  EXPECT_EQ(look_at_access(word), kAccessFailed);
  EXPECT_FALSE(is_still_initiators(word));
}

TEST(AccessWord, IsMadeByExactlyOneSideWhereBothTryAtOnce) {
  constexpr int kAccesses = 20'000;
  struct Line {
    SharedAccessWord word;
    // written by whichever side makes the access, read by the other after it
    std::uint64_t memory = 0;
  };
  std::vector<Line> lines(kAccesses);
  for (Line& line : lines) prepare_access(line.word);
  int by_target = 0, by_initiator = 0;
  std::thread target([&] {
    for (Line& line : lines) {
      serve_access(line.word, [&] { return ++line.memory, ++by_target, true; });
      while (is_still_initiators(line.word)) std::this_thread::yield();
      EXPECT_EQ(line.memory, 1u);
    }
  });
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (AccessWord found; take_access_back(line->word, &found)) {
      ++line->memory;
      ++by_initiator;
      end_own_access(line->word, true);
    }
    while (look_at_access(line->word) != kAccessDone) std::this_thread::yield();
    EXPECT_EQ(line->memory, 1u);
  }
  target.join();
  EXPECT_EQ(by_target + by_initiator, kAccesses);
}

// What a side has written is seen by the other as soon as the word says that it is done, by
// whichever look: those of accesses that the target makes, that it finds taken, that it finds done,
// and that the initiator would take when they are done. For ThreadSanitizer; the sides keep
// together by words that publish nothing.
TEST(AccessWord, ShowsEachSideWhatTheOtherHasDone) {
  constexpr int kAccesses = 300;
  struct Line {
    SharedAccessWord word;
    std::uint64_t memory = 0;
  };
  std::vector<Line> lines(kAccesses);
  for (Line& line : lines) prepare_access(line.word);
  std::atomic<int> taken{-1}, ended{-1}, served{-1};
  const auto wait_for = [](const std::atomic<int>& at, int k) {
    while (at.load(std::memory_order_relaxed) < k) std::this_thread::yield();
  };
  std::thread target([&] {
    for (int k = 0; k < kAccesses; ++k) {
      if (k % 4 == 1 || k % 4 == 2) wait_for(k % 4 == 1 ? taken : ended, k);
      Line& line = lines[k];
      const AccessWord state = serve_access(line.word, [&] { return ++line.memory, true; });
      while (state == kAccessOurs && is_still_initiators(line.word)) std::this_thread::yield();
      EXPECT_EQ(line.memory, 1u);
      served.store(k, std::memory_order_relaxed);
    }
  });
  for (int k = 0; k < kAccesses; ++k) {
    Line& line = lines[k];
    if (k % 4 == 3) wait_for(served, k);
    AccessWord found = kAccessWaiting;
    if (k % 4 == 0) {
      while (look_at_access(line.word) != kAccessDone) std::this_thread::yield();
    } else if (take_access_back(line.word, &found)) {
      taken.store(k, std::memory_order_relaxed);
      for (int i = 0; i < 3; ++i) std::this_thread::yield();
      ++line.memory;
      end_own_access(line.word, true);
      ended.store(k, std::memory_order_relaxed);
    }
    EXPECT_EQ(line.memory, 1u);
  }
  target.join();
}

}  // namespace
}  // namespace clan::ofi

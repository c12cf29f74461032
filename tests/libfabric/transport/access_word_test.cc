// Both sides of a small access, over one word of memory.
#include "transport/access_word.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace clan::ofi

// What a thread has done before it changes a word is seen by the other side: ThreadSanitizer sees
// whether the orders publish it. That the two sides do not miss each other: dekker_model_test.cc.
#include "clan/detail/dekker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>

#include "base/handed_word.h"

namespace clan::dekker {
namespace {

using test::hand_over_by;
using test::kBefore;
using test::Word;

template <typename Change>
void publishes(Change&& change) {
  hand_over_by(change, [](Word& word) { return load(word); });
}

template <typename Seen>
void sees(Seen&& seen) {
  hand_over_by([](Word& word) { announce(word, 5); }, seen);
}

TEST(Dekker, PublishesWhatCameBeforeEachKindOfChange) {
  publishes([](Word& word) { announce(word, 5); });
  publishes([](Word& word) { EXPECT_EQ(swap(word, 5), kBefore); });
  publishes([](Word& word) { EXPECT_EQ(add(word, 1), kBefore); });
  publishes([](Word& word) { EXPECT_EQ(subtract(word, 1), kBefore); });
  publishes([](Word& word) { EXPECT_EQ(set_bits(word, 1), kBefore); });
  publishes([](Word& word) { EXPECT_EQ(clear_bits(word, kBefore), kBefore); });
  publishes([](Word& word) {
    std::uint64_t is = kBefore;
    EXPECT_TRUE(cas(word, is, 5));
  });
}

TEST(Dekker, ShowsWhatCameBeforeToEachThatChangesTheWordNext) {
  sees([](Word& word) { return swap(word, 6); });
  sees([](Word& word) { return add(word, 1); });
  sees([](Word& word) { return subtract(word, 1); });
  sees([](Word& word) { return set_bits(word, 2); });
  sees([](Word& word) { return clear_bits(word, kBefore); });
  sees([](Word& word) {
    std::uint64_t is = 5;
    EXPECT_TRUE(cas(word, is, 6));
    return is;
  });
}

}  // namespace
}  // namespace clan::dekker

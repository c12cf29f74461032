// Plain data handed to another thread by each change of a word and each read of it: ThreadSanitizer
// sees whether the order is there. tests/model/orders weakens them one at a time.
#include "clan/detail/words.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>

#include "base/handed_word.h"
#include "support/hand_over.h"

namespace clan::words {
namespace {

using test::hand_over_by;
using test::kBefore;
using test::Word;

template <typename Change>
void publishes(Change&& change) {
  hand_over_by(change, [](Word& word) { return load_acquire(word); });
}

template <typename Seen>
void sees(Seen&& seen) {
  hand_over_by([](Word& word) { store_release(word, 5); }, seen);
}

TEST(Words, PublishWhatCameBeforeEachKindOfChange) {
  publishes([](Word& word) { store_release(word, 5); });
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

TEST(Words, ShowWhatCameBeforeToEachThatChangesThemNext) {
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

TEST(Words, ShowWhatCameBeforeToOneThatFindsThemChangedAndReplacesNothing) {
  sees([](Word& word) {
    std::uint64_t is = kBefore;
    EXPECT_FALSE(cas(word, is, 6));
    return is;
  });
}

TEST(Words, MayBePlainMemoryThatIsLookedAtAsAtomics) {
  alignas(std::atomic_ref<std::uint64_t>::required_alignment) std::uint64_t word = kBefore;
  std::uint64_t data = 0;
  test::hand_over([&] { data = 7, store_release(std::atomic_ref(word), 5); },
                  [&] {
                    EXPECT_EQ(load_acquire(std::atomic_ref(word)), 5u);
                    EXPECT_EQ(data, 7u);
                  });
}

}  // namespace
}  // namespace clan::words

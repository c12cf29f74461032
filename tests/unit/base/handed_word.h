// A word by which plain data are handed to another thread.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>

#include "support/hand_over.h"

namespace clan::test {

using Word = std::atomic<std::uint64_t>;
constexpr std::uint64_t kBefore = 4;

/// `change` makes the word another one than kBefore, and `seen` answers what it is.
template <typename Change, typename Seen>
void hand_over_by(Change&& change, Seen&& seen) {
  Word word{kBefore};
  std::uint64_t data = 0;
  hand_over([&] { data = 7, change(word); },
            [&] {
              EXPECT_NE(seen(word), kBefore);
              EXPECT_EQ(data, 7u);
            });
}

}  // namespace clan::test

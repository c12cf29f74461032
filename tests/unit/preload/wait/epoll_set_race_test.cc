// Sets are found without a lock: ThreadSanitizer sees whether what is found may be used.
#include <gtest/gtest.h>

#include "support/hand_over.h"
#include "wait/epoll_set.h"

namespace clan::preload {
namespace {

// As make() publishes it.
TEST(EpollSet, OneThatFindsASetSeesWhatWasMade) {
  constexpr int kFd = kMostSets - 1;  // nobody opens so many
  alignas(Set) static char memory[sizeof(Set)];
  auto* const set = reinterpret_cast<Set*>(memory);  // nothing of it is read
  int made = 0;
  test::hand_over(
      [&] {
        made = 1;
        sets[kFd].store(set, std::memory_order_release);
      },
      [&] {
        EXPECT_EQ(find(kFd), set);
        EXPECT_EQ(made, 1);
      });
  sets[kFd].store(nullptr, std::memory_order_relaxed);
}

}  // namespace
}  // namespace clan::preload

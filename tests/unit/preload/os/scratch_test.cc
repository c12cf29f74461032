#include "os/scratch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace clan::preload {
namespace {

TEST(Scratch, IsKeptForTheNextCall) {
  void* first = nullptr;
  {
    const Scratch one(100);
    ASSERT_TRUE(one);
    first = one.as<void>();
    one.as<char>()[Scratch::kUsual - 1] = 'x';
  }
  const Scratch again(200);
  EXPECT_EQ(again.as<void>(), first);
  const Scratch other(100);
  EXPECT_NE(other.as<void>(), first);
}

// One memory, which is there already, that two threads take in turns: what they do to it is plain.
TEST(Scratch, IsGivenBackWithWhatWasDoneToIt) {
  constexpr int kTurns = 200;
  { const Scratch made(100); }
  std::atomic<int> turn{0};
  const auto use = [&turn](int mine) {
    for (int i = mine; i < kTurns; i += 2) {
      while (turn.load(std::memory_order_relaxed) != i) std::this_thread::yield();
      {
        const Scratch memory(100);
        ASSERT_TRUE(memory);
        *memory.as<int>() += 1;
      }
      turn.store(i + 1, std::memory_order_relaxed);  // relaxed: Scratch alone orders
    }
  };
  std::thread other(use, 1);
  use(0);
  other.join();
}

TEST(Scratch, IsAsLargeAsAskedFor) {
  const Scratch large(1 << 20);
  ASSERT_TRUE(large);
  large.as<char>()[(1 << 20) - 1] = 'x';
}

TEST(Scratch, SaysWhenThereIsNoMemory) { EXPECT_FALSE(Scratch(std::size_t{1} << 60)); }

}  // namespace
}  // namespace clan::preload

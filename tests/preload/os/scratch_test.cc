#include "os/scratch.h"

#include <gtest/gtest.h>

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

TEST(Scratch, IsAsLargeAsAskedFor) {
  const Scratch large(1 << 20);
  ASSERT_TRUE(large);
  large.as<char>()[(1 << 20) - 1] = 'x';
}

TEST(Scratch, SaysWhenThereIsNoMemory) { EXPECT_FALSE(Scratch(std::size_t{1} << 60)); }

}  // namespace
}  // namespace clan::preload

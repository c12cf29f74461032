#include "wait/list.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>

namespace clan::preload {
namespace {

TEST(List, KeepsItsContentsWhenItGrows) {
  List<int> list;
  for (int k = 0; k < 1000; ++k) {
    ASSERT_TRUE(list.reserve(list.count + 1));
    list.at[list.count++] = k;
  }
  for (int k = 0; k < 1000; ++k) EXPECT_EQ(list.at[k], k);
  list.release();
  EXPECT_EQ(list.room, 0u);
}

TEST(List, IsNeverLongerThanItsBound) {
  List<int> list;
  EXPECT_FALSE(list.reserve(List<int>::kMost + 1));
  EXPECT_EQ(list.at, nullptr);
}

TEST(ObjectPool, GivesEachThingOnceAndThenAgain) {
  struct Thing {
    long value = 7;
  };
  ObjectPool<Thing> pool;
  std::set<Thing*> taken;
  for (int k = 0; k < 10'000; ++k) taken.insert(pool.take());
  EXPECT_EQ(taken.size(), 10'000u);
  Thing* one = *taken.begin();
  one->value = 1;
  pool.give_back(one);
  Thing* again = pool.take();
  EXPECT_EQ(again, one);
  EXPECT_EQ(again->value, 7);
}

}  // namespace
}  // namespace clan::preload

// SpinLock: one thread at a time, and what it guards is seen by the next.
#include "os/spin_lock.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace clan::preload {
namespace {

TEST(SpinLockTest, LetsOneThreadInAtATime) {
  SpinLock lock;
  long guarded = 0;  // plain: the lock alone orders
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 20'000; ++k) {
        lock.lock();
        ++guarded;
        lock.unlock();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(guarded, 80'000);
}

TEST(SpinLockTest, IsNotWaitedForByAThreadThatOnlyTries) {
  SpinLock lock;
  ASSERT_TRUE(lock.try_lock());
  bool got = true;
  std::thread([&] { got = lock.try_lock(); }).join();
  EXPECT_FALSE(got);
  lock.unlock();
  EXPECT_TRUE(lock.try_lock());
  lock.unlock();
}

}  // namespace
}  // namespace clan::preload

#include "clan/detail/brief_lock.h"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

namespace clan {
namespace {

TEST(BriefLock, OneThreadHasItAtATime) {
  BriefLock lock;
  int held = 0, turns = 0;  // plain: the lock alone is between the threads
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        const std::lock_guard guard(lock);
        EXPECT_EQ(++held, 1);
        if (i % 100 == 0) std::this_thread::yield();
        ++turns;
        --held;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(turns, 8000);
}

}  // namespace
}  // namespace clan

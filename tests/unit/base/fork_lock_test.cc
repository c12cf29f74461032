#include "clan/detail/fork_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "clan/detail/cpu.h"
#include "support/process.h"

namespace clan {
namespace {

using test::Process;

// Two that are changed together, and what a child makes of them.
constinit std::mutex pair_mutex;
constinit int first_of_pair = 0;
constinit int second_of_pair = 0;
constinit int times_in_child = 0;
constinit bool whole_in_child = false;

void look_in_child() {
  ++times_in_child;
  whole_in_child = first_of_pair == second_of_pair && !pair_mutex.try_lock();
}

TEST(ForkLock, ShowsAChildNoStateInTheMiddleOfAChange) {
  ASSERT_TRUE((hold_over_forks<pair_mutex, look_in_child>()));
  ASSERT_TRUE((hold_over_forks<pair_mutex, look_in_child>())) << "once is enough";
  std::atomic<bool> done{false};
  std::thread changes([&] {
    while (!done.load(std::memory_order_relaxed)) {  // relaxed: it publishes nothing else
      std::lock_guard lock(pair_mutex);
      ++first_of_pair;
      for (int i = 0; i < 100; ++i) cpu_pause();
      ++second_of_pair;
    }
  });
  for (int i = 0; i < 50; ++i) {
    const auto in_child = [] {
      std::lock_guard lock(pair_mutex);  // the child's own by now
      CHILD_CHECK(times_in_child == 1);
      CHILD_CHECK(whole_in_child);
      return 0;
    };
    EXPECT_TRUE(Process::start(in_child).wait().clean());
  }
  done.store(true, std::memory_order_relaxed);  // relaxed: the join is behind it
  changes.join();
  EXPECT_EQ(times_in_child, 0) << "the parent goes on with what it has";
}

}  // namespace
}  // namespace clan

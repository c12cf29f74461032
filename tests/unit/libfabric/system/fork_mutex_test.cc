// ForkMutex: free in a forked child, and what it guards whole.
#include "system/fork_mutex.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

namespace clan::ofi {
namespace {

int exit_code_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ForkMutex, IsFreeInAChildThoughAnotherThreadTakesItAllTheTime) {
  ForkMutex::watch_forks();
  ForkMutex mutex;
  long a = 0, b = 0;  // the same, but while it is held
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop.load()) {
      mutex.lock();
      ++a;
      ++b;
      mutex.unlock();
    }
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(!mutex.try_lock() ? 1 : a != b ? 2 : 0);
    EXPECT_EQ(exit_code_of(child), 0) << i;
  }
  stop.store(true);
  other.join();
}

TEST(ForkMutex, IsFreeInTheParentAfterAFork) {
  ForkMutex::watch_forks();
  ForkMutex mutex;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  EXPECT_EQ(exit_code_of(child), 0);
  ASSERT_TRUE(mutex.try_lock());
  mutex.unlock();
}

// Two threads that take two of them in different orders, one inside the other, would never let a
// fork in that waits for one while it holds another.
TEST(ForkMutex, IsNotWaitedForByAForkThatHoldsAnother) {
  ForkMutex::watch_forks();
  ForkMutex first, second;
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop.load()) {
      second.lock();
      if (first.try_lock()) first.unlock();
      second.unlock();
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < 10; ++i) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(first.try_lock() && second.try_lock() ? 0 : 1);
    EXPECT_EQ(exit_code_of(child), 0) << i;
  }
  stop.store(true);
  other.join();
}

TEST(ForkMutex, ThatIsGoneIsNotTaken) {
  ForkMutex::watch_forks();
  std::make_unique<ForkMutex>().reset();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  EXPECT_EQ(exit_code_of(child), 0);
}

}  // namespace
}  // namespace clan::ofi

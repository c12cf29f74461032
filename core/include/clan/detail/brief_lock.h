// BriefLock: a mutex taken by one locked instruction and released by a plain store, so that it
// waits for no store made under it. Waiters spin: for what one process's threads hold briefly.
#pragma once

#include <clan/detail/words.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace clan {

class BriefLock {
 public:
  void lock() {
    // PAIR words: what the thread before has done under it
    while (words::swap(taken_, true)) wait();
  }
  // PAIR words: what this thread has done under it
  void unlock() { words::store_release(taken_, false); }

 private:
  [[gnu::noinline]] void wait() const {
    // relaxed: the swap sees
    for (int turn = 0; taken_.load(std::memory_order_relaxed); ++turn) {
      if (turn < 100) {
        ::sched_yield();
      } else {  // the one that has it may need this processor, whatever its priority
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }
  std::atomic<bool> taken_{false};
};

}  // namespace clan

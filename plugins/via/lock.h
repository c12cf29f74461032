// Lock: a mutex that takes one instruction with the bus held, and lets go with a plain store: every
// call of the library takes a VI's, and std::mutex a fifth of a short message's time. Threads that
// share a VI are rare, and hold it briefly: those that wait look again and again.
#pragma once

#include <clan/words.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace clan::via {

class Lock {
 public:
  void lock() {
    // PAIR words: what the thread before has done under it
    while (words::swap(taken_, true)) wait();
  }
  // PAIR words: what this thread has done under it
  void unlock() { words::publish(taken_, false); }

 private:
  [[gnu::noinline]] void wait() const {
    // relaxed: the swap sees
    for (int turn = 0; taken_.load(std::memory_order_relaxed); ++turn) {
      if (turn < 100) {
        std::this_thread::yield();
      } else {  // the one that has it may need this processor, whatever its priority
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }
  std::atomic<bool> taken_{false};
};

}  // namespace clan::via

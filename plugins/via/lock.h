// Lock: a mutex whose two calls are one instruction each where no other thread is at it. Every call
// of the library takes a VI's; std::mutex takes a fifth of a short message's time.
#pragma once

#include <clan/words.h>

#include <atomic>
#include <cstdint>

namespace clan::via {

class Lock {
 public:
  void lock() {
    std::uint32_t was = kFree;
    // PAIR words: what the thread before has done under it
    if (!words::replace(state_, was, kTaken)) wait();
  }
  void unlock() {
    // PAIR words: what this thread has done under it
    if (words::swap(state_, kFree) == kAwaited) state_.notify_one();
  }

 private:
  static constexpr std::uint32_t kFree = 0, kTaken = 1, kAwaited = 2;
  [[gnu::noinline]] void wait() {
    // PAIR words: as lock()
    while (words::swap(state_, kAwaited) != kFree)
      state_.wait(kAwaited, std::memory_order_relaxed);  // relaxed: the swap sees
  }
  std::atomic<std::uint32_t> state_{kFree};
};

}  // namespace clan::via

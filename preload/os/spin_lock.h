// A lock for a few instructions: a thread that does not get it gives the processor away. No system
// call while it is free, and none to let go of it. A thread that could be interrupted by a handler
// which needs the lock is DeferSignals.
#pragma once

#include <sched.h>

#include <atomic>

namespace clan::preload {

class SpinLock {
 public:
  // PAIR preload.lock: sees what it guards
  bool try_lock() { return !held_.test_and_set(std::memory_order_acquire); }
  void lock() {
    while (!try_lock()) sched_yield();
  }
  // PAIR preload.lock: publishes what it guards
  void unlock() { held_.clear(std::memory_order_release); }

 private:
  std::atomic_flag held_ = ATOMIC_FLAG_INIT;
};

}  // namespace clan::preload

// A lock for a few instructions, without a system call unless it is taken: then the thread yields.
// DeferSignals protects a holder from handlers that need the lock.
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

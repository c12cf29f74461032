// ForkMutex: a mutex that is free in a forked child, and what it guards whole: fork() takes them
// all.
//
// What a child inherits is of no use to it (the engine's contexts end there, calls answer
// ESHUTDOWN), but it may call it and close it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace clan::ofi {

class ForkMutex {
 public:
  ForkMutex();
  ~ForkMutex();
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  void lock() { mutex_.lock(); }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

  /// From now on. After the engine's first context has been made: its locks are taken last.
  static void watch_forks();
  /// How many forks lie behind this process, of those that were watched. What was made when there
  /// were fewer is a parent's.
  // relaxed: changes while there is one thread
  static std::uint32_t forks() { return forks_.load(std::memory_order_relaxed); }

 private:
  static void after_fork_in_child();
  inline static std::atomic<std::uint32_t> forks_{0};
  std::mutex mutex_;
};

}  // namespace clan::ofi

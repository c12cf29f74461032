// ForkMutex: a mutex that is free in a forked child, and what it guards whole: fork() takes them
// all.
//
// What a child inherits is of no use to it (the engine's contexts end there, calls answer
// ESHUTDOWN), but it may call it and close it.
#pragma once

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

 private:
  std::mutex mutex_;
};

}  // namespace clan::ofi

// Latch: a fact about a connection that holds until the connection ends.
#pragma once

#include <atomic>

namespace clan::preload {

/// Any thread sets it, once. Sequentially consistent: the setter then checks for sleepers, and a
/// thread about to sleep checks the latch.
class Latch {
 public:
  // PAIR preload.flag: a thread about to sleep sees it, or the setter sees that thread
  operator bool() const { return set_.load(std::memory_order_seq_cst); }
  // PAIR preload.flag
  void set() { set_.store(true, std::memory_order_seq_cst); }
  /// Sets it. True for the one thread that did.
  bool set_first() {
    return !set_.exchange(true, std::memory_order_seq_cst);  // PAIR preload.flag
  }
  /// Clears it. True for the one thread that did.
  bool clear() {
    return set_.exchange(false, std::memory_order_seq_cst);  // PAIR preload.flag
  }
  void reset() {
    set_.store(false, std::memory_order_relaxed);  // relaxed: the pool's lock publishes it
  }

 private:
  std::atomic<bool> set_{false};
};

}  // namespace clan::preload

// Latch: something that has happened to a connection, and stays so as long as it lives.
#pragma once

#include <atomic>

namespace clan::preload {

/// Any thread sets it, any looks. Sequentially consistent: a thread that has set it then checks
/// whether another sleeps, and one that is about to sleep checks it. It is set once in a
/// connection's life.
class Latch {
 public:
  // PAIR preload.flag: a thread that is about to sleep sees it, or is seen by the one that sets it
  operator bool() const { return set_.load(std::memory_order_seq_cst); }
  // PAIR preload.flag
  void set() { set_.store(true, std::memory_order_seq_cst); }
  /// Whether nobody had. One thread alone hears so.
  bool set_first() {
    return !set_.exchange(true, std::memory_order_seq_cst);  // PAIR preload.flag
  }
  /// Whether it was set. One thread alone hears so.
  bool clear() {
    return set_.exchange(false, std::memory_order_seq_cst);  // PAIR preload.flag
  }
  /// For the next connection: nobody has this one any more.
  void reset() {
    set_.store(false, std::memory_order_relaxed);  // relaxed: the pool's lock passes it on
  }

 private:
  std::atomic<bool> set_{false};
};

}  // namespace clan::preload

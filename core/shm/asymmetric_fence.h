// A store-load fence that costs only the side that is about to sleep.
//
// "Store data, then load armed" on the sender and "store armed, then load data" on the sleeper is
// Dekker's pattern: without a full fence on both sides both loads may miss both stores, and a
// wake-up is lost. membarrier(2) lets the sleeper run the fence on every core at once (about 1.3
// us, paid before sleeping), so that the sender's half shrinks to a compiler barrier.
//
// Both processes must have registered; where one could not, the sender runs a real fence.
#pragma once

#include <atomic>

namespace clan::shm {

class AsymmetricFence {
 public:
  /// Registers this process to take part. True when the kernel agreed. Cheap after the first call.
  static bool register_process();

  /// The sleeper's half. Orders this thread's earlier stores before its later loads, and the same
  /// on every thread of every registered process. A plain fence where membarrier is not to be had,
  /// and a pause behind it where it is not to be had any more.
  static void heavy();

  /// The sender's half, when heavy() of the sleeper reaches this process.
  // order: a compiler barrier; the processor's is heavy()
  static void light() { std::atomic_signal_fence(std::memory_order_seq_cst); }

  /// The sender's half otherwise. A read-modify-write rather than a fence: ThreadSanitizer sees it.
  static void full() {
    static thread_local std::atomic<int> word{0};
    // order: a locked instruction is a full fence on x86; on others seq_cst with heavy()'s fence
    word.fetch_add(1, std::memory_order_seq_cst);
  }

  /// Both halves, where the other side runs it, too: a thread that delivers packets, and one that
  /// sleeps for nothing but packets. Nothing for the kernel to do.
  static void even() {
#if defined(__SANITIZE_THREAD__)
    full();  // ThreadSanitizer knows no fences
#else
    // PAIR fence.even: the same on the other side; one of us sees the other's store
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }
};

}  // namespace clan::shm

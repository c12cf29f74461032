// A store-load fence that costs only the side that is about to sleep.
//
// Both sides store, then load what the other stores (Dekker): without a full fence on both, both
// may miss. membarrier(2) lets the sleeper run the fence on every core (about 1.3 us, before
// sleeping), so that the sender's half is a compiler barrier. Both processes must have registered;
// where one could not, the sender runs a real fence.
#pragma once

#include <atomic>

namespace clan::shm {

class AsymmetricFence {
 public:
  /// Registers this process to take part. True when the kernel agreed. Cheap after the first call.
  static bool register_process();

  /// The sleeper's half: orders earlier stores before later loads, here and on every thread of
  /// every registered process. Without membarrier a plain fence, with a pause if it was lost later.
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

  /// Both halves, where both sides run it: delivering packets, and sleeping for nothing else.
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

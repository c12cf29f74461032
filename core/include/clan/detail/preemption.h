// PreemptionWatch: whether the calling thread has been off its processor, without a system call.
//
// A thread that finds that time has gone by between two of its steps has been interrupted, or its
// machine has stood still (a hypervisor took the processor), or the scheduler has let another
// thread run. Only the last says that somebody here computes beside it.
//
// The kernel tells by the area of restartable sequences that the C library registers for each
// thread (rseq(2)): when it preempts a thread that is not in the sequence that rseq_cs names, it
// clears rseq_cs. The sequence named here is never run. A program that uses the area for itself
// overwrites the word, which reads as preempted.
//
// Thread-safety: a watch belongs to the thread that made it. Signal handlers clear the word, too.
#pragma once

#include <clan/detail/export.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#define CLAN_HAS_RSEQ 1
#endif

namespace clan {

#if defined(CLAN_HAS_RSEQ)
/// A descriptor of a restartable sequence that is never run (core/base/preemption.cc).
extern "C" CLAN_EXPORT const std::byte clan_rseq_never_run[];

class PreemptionWatch {
 public:
  PreemptionWatch() { begin(); }
  ~PreemptionWatch() {
    if (registered()) word().store(0, std::memory_order_relaxed);
  }
  PreemptionWatch(const PreemptionWatch&) = delete;
  PreemptionWatch& operator=(const PreemptionWatch&) = delete;

  void begin() {
    if (registered()) word().store(never_run(), std::memory_order_relaxed);
  }
  /// Tells whether the kernel reports preemption to this process. Where it does not, happened() is
  /// always true.
  static bool works() { return registered(); }
  /// Since begin(). True, too, where it cannot be known.
  bool happened() const {
    return !registered() || word().load(std::memory_order_relaxed) != never_run();
  }

 private:
  static bool registered() { return __rseq_size != 0; }
  static std::uint64_t never_run() { return reinterpret_cast<std::uintptr_t>(clan_rseq_never_run); }
  // relaxed: between the thread and the kernel that returns to it
  static std::atomic<std::uint64_t>& word() {
    auto* area = reinterpret_cast<std::byte*>(__builtin_thread_pointer()) + __rseq_offset;
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(area + offsetof(struct rseq, rseq_cs));
  }
};
#else
class PreemptionWatch {
 public:
  void begin() {}
  static bool works() { return false; }
  bool happened() const { return true; }
};
#endif

}  // namespace clan

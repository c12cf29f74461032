// PreemptionWatch: whether the calling thread has been off its processor, without a system call.
//
// Time that goes by between two steps of a thread is an interrupt, a machine that stood still (a
// hypervisor took the processor), or another thread that ran. Only the last means a computation.
//
// The kernel tells by each thread's rseq(2) area, which the C library registers: preempting a
// thread outside the sequence that rseq_cs names, it clears rseq_cs. The sequence named here never
// runs. A program that uses the area overwrites the word, which reads as preempted.
//
// A watch belongs to the thread that made it. Signal handlers clear the word, too.
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
  /// Returns whether the kernel reports preemption here. If not, happened() is always true.
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

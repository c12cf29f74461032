// When the application's signal handlers run: between the library's steps, as they run between the
// kernel's.
//
// A handler that has interrupted the library under a lock, and uses the same socket, would wait for
// itself; one that jumps away (siglongjmp) would leave the lock behind. So the application's
// handlers are called by the library's. While its thread is DeferSignals, that one blocks the
// signal and sends it to the thread anew; the end of the section lets it in. siginfo_t is passed on
// as it came.
//
// So do signals that the mask of ppoll() or its kin blocks, for as long as such a call waits awake.
// Several real-time signals of one number may be queued: they are handled in their order.
//
// Not put off: faults (SIGSEGV and its like), as what has faulted cannot go on, and handlers that
// were set by system call, past the C library.
//
// The library's handler also gets the faults of copies from and to the application's buffers: where
// there is no such memory the kernel would say EFAULT, and so do we. So it is installed, once a
// connection has moved, if the application has set none; the application does not see it, and what
// is not such a fault ends the program as ever. A thread that blocks SIGSEGV cannot be helped:
// there the kernel ends the program.
#pragma once

#include <signal.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "os/sys.h"

namespace clan::preload {

/// A thread's signals. Written by it and by the handlers that interrupt it.
struct SignalState {
  std::uint32_t sections;  ///< open ones
  std::uint32_t handled;   ///< handlers that have run
  /// of these, those after which the kernel restarts nothing (no SA_RESTART)
  std::uint32_t interrupting;
  std::uint64_t put_off;  ///< signals, by bits as the kernel's sets
  /// what the call under way blocks beside the thread's own mask, in the same bits; see
  /// ScopedSigmask
  std::uint64_t blocked;
  std::int32_t thread;  ///< its id, 0: not asked yet
  void** copying;       ///< where to go on if the application's buffer is not there
};
// initial-exec: asked on the data path, and in handlers
extern constinit thread_local SignalState t_signals __attribute__((tls_model("initial-exec")));

/// The calling thread's id, without a system call each time. In a child of vfork() its parent's.
inline std::int32_t thread_id() {
  if (t_signals.thread == 0) t_signals.thread = static_cast<std::int32_t>(sys::call(SYS_gettid));
  return t_signals.thread;
}

/// Lets in what has been put off. For the end of a section.
void let_signals_in();

inline void enter_section() {
  ++t_signals.sections;
  // order: the compiler keeps it; a handler runs in the same thread
  std::atomic_signal_fence(std::memory_order_seq_cst);
}
inline void leave_section() {
  // order: the compiler keeps it; a handler runs in the same thread
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (--t_signals.sections == 0 && t_signals.put_off != 0) let_signals_in();
}

/// A section of the calling thread in which no handler runs. Sections nest. Nothing may sleep in
/// one that the application could want to interrupt.
class DeferSignals {
 public:
  DeferSignals() { enter_section(); }
  ~DeferSignals() { leave_section(); }
  DeferSignals(const DeferSignals&) = delete;
  DeferSignals& operator=(const DeferSignals&) = delete;
};

/// A gap in the sections that are open, for a wait.
class AllowSignals {
 public:
  AllowSignals() : sections_(t_signals.sections) {
    // order: the compiler keeps it; a handler runs in the same thread
    std::atomic_signal_fence(std::memory_order_seq_cst);
    t_signals.sections = 0;
    if (t_signals.put_off != 0) let_signals_in();
  }
  ~AllowSignals() {
    t_signals.sections = sections_;
    // order: the compiler keeps it; a handler runs in the same thread
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  AllowSignals(const AllowSignals&) = delete;
  AllowSignals& operator=(const AllowSignals&) = delete;

 private:
  std::uint32_t sections_;
};

/// The mask of signals of a call that waits, in force while it does so awake; asleep the kernel
/// sees to it. Without a mask it is none.
class ScopedSigmask {
 public:
  explicit ScopedSigmask(const sigset_t* mask)
      : before_(t_signals.blocked), is_known_(mask == nullptr || read_mask(mask)) {}
  ~ScopedSigmask() {
    t_signals.blocked = before_;
    if (t_signals.put_off != 0 && t_signals.sections == 0) let_signals_in();
  }
  ScopedSigmask(const ScopedSigmask&) = delete;
  ScopedSigmask& operator=(const ScopedSigmask&) = delete;
  /// False, with errno: the program's may not be read.
  explicit operator bool() const { return is_known_; }

 private:
  static bool read_mask(const sigset_t* mask);
  std::uint64_t before_;
  bool is_known_;
};

/// From now on a buffer that is not there is EFAULT. Before the first pipe.
void guard_buffers();

/// What has run since a call began. A call that the kernel would have spent asleep has to end with
/// EINTR for a handler that ran while we were awake.
class SignalSnapshot {
 public:
  SignalSnapshot() { begin(); }
  void begin() {
    handled_ = t_signals.handled;
    interrupting_ = t_signals.interrupting;
  }
  bool handled() const {
    // order: the compiler keeps it; a handler runs in the same thread
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return t_signals.handled != handled_;
  }
  bool interrupted() const {
    // order: the compiler keeps it; a handler runs in the same thread
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return t_signals.interrupting != interrupting_;
  }

 private:
  std::uint32_t handled_, interrupting_;
};

}  // namespace clan::preload

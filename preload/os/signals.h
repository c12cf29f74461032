// When the application's signal handlers run: between the library's steps.
//
// A handler that interrupts the library under a lock could deadlock on it, or jump away
// (siglongjmp) and leave it taken. So the library's handler calls the application's. While its
// thread is in a DeferSignals section, it blocks the signal and queues it anew, with its siginfo_t;
// the end of the section lets it in. The same happens to signals that the mask of ppoll() or its
// kin blocks, while such a call waits awake. Real-time signals of one number keep their order.
//
// Not put off: faults (SIGSEGV and others), as the code cannot go on, and handlers that were set by
// system call, past the C library.
//
// The library's handler also catches faults of copies from and to the application's buffers, where
// the kernel would return EFAULT. It is installed once a connection has moved, if the application
// has no handler, which does not see it; any other fault ends the program. In a thread that blocks
// SIGSEGV, the kernel ends the program for these as well.
#pragma once

#include <signal.h>

#include <atomic>
#include <cstdint>

#include "os/sys.h"

namespace clan::preload {

/// A thread's signals. Written by the thread and the handlers that interrupt it. Sets of signals
/// have the kernel's bits.
struct SignalState {
  std::uint32_t sections;      ///< open ones
  std::uint32_t handled;       ///< handlers that have run
  std::uint32_t interrupting;  ///< those of them without SA_RESTART
  std::uint64_t put_off;
  std::uint64_t blocked;  ///< by the call under way, see ScopedSigmask
  std::int32_t thread;    ///< its id, 0: not known yet
  void** copying;         ///< where to jump if the application's buffer is not there
};
// initial-exec: read on the data path, and in handlers
extern constinit thread_local SignalState t_signals __attribute__((tls_model("initial-exec")));

/// Returns the thread's id, without a system call each time. In a child of vfork() its parent's.
inline std::int32_t thread_id() {
  if (t_signals.thread == 0) t_signals.thread = static_cast<std::int32_t>(sys::call(SYS_gettid));
  return t_signals.thread;
}

/// Lets in what has been put off. For the end of a section.
void let_signals_in();

/// Keeps the compiler from moving accesses across it.
inline void compiler_fence() {
  // order: for the compiler alone; a handler runs in the same thread
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

inline void enter_section() {
  ++t_signals.sections;
  compiler_fence();
}
inline void leave_section() {
  compiler_fence();
  if (--t_signals.sections == 0 && t_signals.put_off != 0) let_signals_in();
}

/// Blocks all signals of the thread while it lives, or for good after stay().
class AllBlocked {
 public:
  AllBlocked() {
    const std::uint64_t all = ~std::uint64_t{0};
    sys::call(SYS_rt_sigprocmask, SIG_BLOCK, &all, &before_, sizeof all);
  }
  ~AllBlocked() {
    if (restores_) sys::call(SYS_rt_sigprocmask, SIG_SETMASK, &before_, nullptr, sizeof before_);
  }
  AllBlocked(const AllBlocked&) = delete;
  AllBlocked& operator=(const AllBlocked&) = delete;
  void stay() { restores_ = false; }

 private:
  std::uint64_t before_ = 0;
  bool restores_ = true;
};

/// A section in which no handler runs in the thread. Sections nest. No sleep that the application
/// could want to interrupt may be in one.
class DeferSignals {
 public:
  DeferSignals() { enter_section(); }
  ~DeferSignals() { leave_section(); }
  DeferSignals(const DeferSignals&) = delete;
  DeferSignals& operator=(const DeferSignals&) = delete;
};

/// A gap in the open sections, for a wait.
class AllowSignals {
 public:
  AllowSignals() : sections_(t_signals.sections) {
    compiler_fence();
    t_signals.sections = 0;
    if (t_signals.put_off != 0) let_signals_in();
  }
  ~AllowSignals() {
    t_signals.sections = sections_;
    compiler_fence();
  }
  AllowSignals(const AllowSignals&) = delete;
  AllowSignals& operator=(const AllowSignals&) = delete;

 private:
  std::uint32_t sections_;
};

/// The signal mask of a call that waits, in force while the call is awake; the kernel applies it in
/// sleep. The mask may be null.
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
  /// False, with errno: the mask cannot be read.
  explicit operator bool() const { return is_known_; }

 private:
  static bool read_mask(const sigset_t* mask);
  std::uint64_t before_;
  bool is_known_;
};

/// Makes a buffer that is not there EFAULT. Before the first pipe.
void guard_buffers();

/// Tells which handlers have run since a call began: a call that would have slept in the kernel
/// ends with EINTR for a handler that ran while the library was awake.
class SignalSnapshot {
 public:
  SignalSnapshot() { begin(); }
  void begin() {
    handled_ = t_signals.handled;
    interrupting_ = t_signals.interrupting;
  }
  bool handled() const {
    compiler_fence();
    return t_signals.handled != handled_;
  }
  bool interrupted() const {
    compiler_fence();
    return t_signals.interrupting != interrupting_;
  }

 private:
  std::uint32_t handled_, interrupting_;
};

}  // namespace clan::preload

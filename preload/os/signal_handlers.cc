#include "os/signal_handlers.h"

#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "clan/detail/words.h"
#include "clan/face/pipe.h"
#include "os/memory_owner.h"
#include "os/real.h"
#include "os/signals.h"
#include "os/spin_lock.h"
#include "os/sys.h"

namespace clan::preload {

constinit thread_local SignalState t_signals{};

void let_signals_in() {
  KeepErrno keep;
  const std::uint64_t set = t_signals.put_off & ~t_signals.blocked;
  if (set == 0) return;
  t_signals.put_off &= ~set;
  sys::call(SYS_rt_sigprocmask, SIG_UNBLOCK, &set, nullptr, sizeof set);
}

namespace {

// The application's handlers, by signal: the address, and in the upper bits how it is called.
constexpr std::uint64_t kWantsInfo = std::uint64_t{1} << 63;  ///< SA_SIGINFO
constexpr std::uint64_t kRestarts = std::uint64_t{1} << 62;   ///< SA_RESTART
constexpr std::uint64_t kAddress = kRestarts - 1;
// order: seq_cst stores before the call into the kernel; signals delivered from then on read them
std::atomic<std::uint64_t> handlers[NSIG];
/// the set of siginterrupt(), for signal()
std::atomic<std::uint64_t> interrupt{0};

std::uint64_t bit(int number) { return std::uint64_t{1} << (number - 1); }

bool is_fault(int number) {
  constexpr int kFaults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
  return std::ranges::find(kFaults, number) != std::end(kFaults);
}

std::atomic<bool> buffers_guarded{false};

// The library and the application both set handlers of faults.
SpinLock faults_lock;
class FaultsGuard {
 public:
  explicit FaultsGuard(int number) : locks_(number == SIGSEGV || number == SIGBUS) {
    if (locks_) faults_lock.lock();
  }
  ~FaultsGuard() {
    if (locks_) faults_lock.unlock();
  }
  FaultsGuard(const FaultsGuard&) = delete;
  FaultsGuard& operator=(const FaultsGuard&) = delete;

 private:
  DeferSignals undisturbed_;
  bool locks_;
};

void handle(int number, siginfo_t* info, void* context);

// Real-time signals of a thread that have been put off, the oldest first. One that is queued anew
// would come behind others of its number. So it is kept here, and a token is queued: each signal
// delivered before the token is kept in exchange for the oldest. There are as many tokens as kept
// signals. Used with all signals blocked.
class KeptSignals {
 public:
  // False: no real-time signal, or no room.
  bool keep(int number, const siginfo_t& info, long process, long thread) {
    if (thread_ != thread) count_ = 0;  // a child of fork, which has no pending signals
    thread_ = thread;
    if (!is_real_time(number) || (count_ == kMost && !is_token(info))) return false;
    siginfo_t token = info;
    token.si_code = SI_QUEUE;
    token.si_errno = kToken;
    token.si_value.sival_ptr = this;
    if (sys::call(SYS_rt_tgsigqueueinfo, process, thread, number, &token) != 0) return false;
    if (!is_token(info)) infos_[count_++] = info;
    return true;
  }
  // Signals need not be blocked.
  bool is_concerned(int number, const siginfo_t& info) const {
    return is_real_time(number) && (count_ > 0 || is_token(info));
  }
  // Exchanges the delivered signal for the oldest. False: a token, and none of its number is kept.
  bool exchange(int number, siginfo_t* info) {
    const bool token = is_token(*info);
    int oldest = 0;
    while (oldest < count_ && infos_[oldest].si_signo != number) ++oldest;
    if (oldest == count_) return !token;
    const siginfo_t delivered = *info;
    *info = infos_[oldest];
    std::copy(infos_ + oldest + 1, infos_ + count_, infos_ + oldest);
    if (token) {
      --count_;
    } else {
      infos_[count_ - 1] = delivered;
    }
    return true;
  }

 private:
  static constexpr int kMost = 4;
  static constexpr int kToken = 0x636c616e;
  static bool is_real_time(int number) { return number >= 32; }  // the kernel's SIGRTMIN
  bool is_token(const siginfo_t& info) const {
    return info.si_code == SI_QUEUE && info.si_errno == kToken && info.si_value.sival_ptr == this;
  }
  long thread_ = 0;
  int count_ = 0;
  siginfo_t infos_[kMost] = {};
};
constinit thread_local KeptSignals kept_signals __attribute__((tls_model("initial-exec")));

// If only the call under way blocks the signal, another thread may take it.
bool is_for_process(int number, const siginfo_t& info) {
  return (t_signals.blocked & bit(number)) != 0 &&
         (info.si_code == SI_USER || info.si_code == SI_KERNEL || number == SIGCHLD);
}

bool queue_anew(int number, siginfo_t* info, bool has_info) {
  const long process = sys::call(SYS_getpid), thread = sys::call(SYS_gettid);
  if (kept_signals.keep(number, *info, process, thread)) return true;
  if (is_for_process(number, *info))
    return sys::call(SYS_rt_sigqueueinfo, process, number, info) == 0;
  return (has_info ? sys::call(SYS_rt_tgsigqueueinfo, process, thread, number, info)
                   : sys::call(SYS_tgkill, process, thread, number)) == 0;
}

// Replaces the delivered signal by the one to be handled now. False: none.
bool take_oldest(int number, siginfo_t* info) {
  if (!kept_signals.is_concerned(number, *info)) return true;
  KeepErrno keep;
  const AllBlocked all_blocked;
  return kept_signals.exchange(number, info);
}

// Makes the signal come again when the thread's section is over. False: it cannot be queued.
bool put_off(int number, siginfo_t* info, void* context, bool has_info) {
  KeepErrno keep;
  AllBlocked all_blocked;
  if (!queue_anew(number, info, has_info)) return false;  // RLIMIT_SIGPENDING
  all_blocked.stay();                                     // until the handler returns
  ::sigaddset(&static_cast<ucontext_t*>(context)->uc_sigmask, number);
  t_signals.put_off |= bit(number);
  struct sigaction now {};
  if (real().sigaction(number, nullptr, &now) == 0 &&
      (now.sa_flags & static_cast<int>(SA_RESETHAND)) != 0 && now.sa_handler == SIG_DFL) {
    now.sa_sigaction = handle;
    real().sigaction(number, &now, nullptr);
  }
  return true;
}

bool is_guarded(int number) {
  return buffers_guarded.load(std::memory_order_relaxed) && (number == SIGSEGV || number == SIGBUS);
}

// The fault of a copy jumps to where the copy began; other faults without a handler end the
// program.
void handle_fault(int number, const siginfo_t* info, void* context) {
  if (info->si_code > 0 && t_signals.copying != nullptr) {
    sys::call(SYS_rt_sigprocmask, SIG_SETMASK, &static_cast<ucontext_t*>(context)->uc_sigmask,
              nullptr, sizeof(std::uint64_t));
    __builtin_longjmp(t_signals.copying, 1);
  }
  if ((handlers[number].load(std::memory_order_relaxed) & kAddress) != 0) return;
  struct sigaction none {};
  none.sa_handler = SIG_DFL;
  real().sigaction(number, &none, nullptr);
  // A fault comes again on return. A signal that was sent does not.
  if (info->si_code <= 0)
    sys::call(SYS_tgkill, sys::call(SYS_getpid), sys::call(SYS_gettid), number);
}

void handle(int number, siginfo_t* info, void* context) {
  if (number == SIGSEGV || number == SIGBUS) handle_fault(number, info, context);
  const std::uint64_t set = handlers[number].load(std::memory_order_relaxed);
  const bool waits = t_signals.sections != 0 || (t_signals.blocked & bit(number)) != 0;
  if (waits && !is_fault(number) && put_off(number, info, context, (set & kWantsInfo) != 0)) return;
  if (!take_oldest(number, info) || (set & kAddress) == 0) return;
  if (t_signals.blocked != 0) {
    // As in the kernel's wait: the call ends, and signals that its mask blocks come afterwards.
    sys::call(SYS_rt_sigprocmask, SIG_BLOCK, &t_signals.blocked, nullptr, sizeof t_signals.blocked);
    t_signals.blocked = 0;
  }
  ++t_signals.handled;
  if ((set & kRestarts) == 0) ++t_signals.interrupting;
  // Last, as it may jump away or throw.
  reinterpret_cast<void (*)(int, siginfo_t*, void*)>(set & kAddress)(number, info, context);
}

// Not inlined, so that the caller's registers survive the jump.
[[gnu::noinline]] bool guard_copy(void (*copy)(void*), void* argument) {
  void* place[5];
  if (__builtin_setjmp(place) != 0) {
    t_signals.copying = nullptr;
    return false;
  }
  t_signals.copying = place;
  compiler_fence();
  copy(argument);
  compiler_fence();
  t_signals.copying = nullptr;
  return true;
}

struct MaskCopy {
  const sigset_t* from;
  std::uint64_t mask;
};
void copy_mask(void* argument) {
  auto* const copy = static_cast<MaskCopy*>(argument);
  std::memcpy(&copy->mask, copy->from, sizeof copy->mask);
}

// By a call that only reads it.
bool is_readable(const sigset_t* mask) {
  constexpr int kNone = 99;
  const KeepErrno keep;
  return sys::call(SYS_rt_sigprocmask, kNone, mask, nullptr, sizeof(std::uint64_t)) >= 0 ||
         errno != EFAULT;
}

struct sigaction for_faults() {
  struct sigaction action {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  return action;
}

bool in_range(int number) { return number > 0 && number < NSIG; }

std::uint64_t entry_of(const struct sigaction& action) {
  return reinterpret_cast<std::uint64_t>(action.sa_sigaction) |
         ((action.sa_flags & SA_SIGINFO) != 0 ? kWantsInfo : 0) |
         ((action.sa_flags & SA_RESTART) != 0 ? kRestarts : 0);
}

bool is_handler(sighandler_t handler) {
  return handler != SIG_DFL && handler != SIG_IGN && handler != SIG_ERR && handler != SIG_HOLD;
}

const auto ours = reinterpret_cast<sighandler_t>(reinterpret_cast<std::uintptr_t>(handle));

}  // namespace

bool ScopedSigmask::read_mask(const sigset_t* mask) {
  MaskCopy copy{mask, 0};
  // PAIR preload.guard: the handlers are set. Without them nothing has moved.
  const bool guarded = words::load_acquire(buffers_guarded);
  if (guarded ? guard_copy(copy_mask, &copy) : is_readable(mask)) {
    if (!guarded) copy_mask(&copy);
    t_signals.blocked = copy.mask;
    return true;
  }
  errno = EFAULT;
  return false;
}

void guard_buffers() {
  // PAIR preload.guard: the handlers are set
  if (words::load_acquire(buffers_guarded)) return;
  KeepErrno keep;
  const FaultsGuard lock(SIGSEGV);
  if (buffers_guarded.load(std::memory_order_relaxed)) return;
  for (const int number : {SIGSEGV, SIGBUS}) {
    struct sigaction now {};
    if (real().sigaction(number, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) continue;
    const struct sigaction ours_then = for_faults();
    // order: before the call into the kernel
    handlers[number].store(0, std::memory_order_seq_cst);
    real().sigaction(number, &ours_then, nullptr);
  }
  Pipe::guard_copies(guard_copy);
  words::store_release(buffers_guarded, true);  // PAIR preload.guard
}

bool is_wrapped(const struct sigaction& action) { return action.sa_sigaction == handle; }

int set_action(int number, const struct sigaction* action, struct sigaction* old) {
  if (!in_range(number)) return real().sigaction(number, action, old);
  const FaultsGuard lock(number);
  const bool default_of_fault =
      action != nullptr && action->sa_handler == SIG_DFL && is_guarded(number);
  const bool wrap = (default_of_fault || (action != nullptr && is_handler(action->sa_handler))) &&
                    !in_borrowed_memory();
  std::uint64_t before = handlers[number].load(std::memory_order_relaxed);  // relaxed: a word alone
  struct sigaction with {};
  if (wrap && default_of_fault) {
    // order: before the call into the kernel
    before = handlers[number].exchange(0, std::memory_order_seq_cst);
    with = for_faults();
  } else if (wrap) {
    with = *action;
    // order: before the call into the kernel
    before = handlers[number].exchange(entry_of(with), std::memory_order_seq_cst);
    with.sa_sigaction = handle;
    with.sa_flags |= SA_SIGINFO;
  }
  const int rc = real().sigaction(number, wrap ? &with : action, old);
  if (rc != 0) {
    // relaxed: the kernel has refused, and calls the old handler
    if (wrap) handlers[number].store(before, std::memory_order_relaxed);
    return rc;
  }
  if (old != nullptr && old->sa_sigaction == handle) {
    old->sa_handler = reinterpret_cast<sighandler_t>(before & kAddress);
    if ((before & kWantsInfo) == 0) old->sa_flags &= ~SA_SIGINFO;
    if (old->sa_handler == SIG_DFL) old->sa_flags = 0;
  }
  return rc;
}

sighandler_t set_handler(int number, sighandler_t handler, bool restarts, SetHandler call) {
  if (handler == SIG_DFL && is_guarded(number)) {
    struct sigaction none {};
    struct sigaction old {};
    return set_action(number, &none, &old) == 0 ? old.sa_handler : SIG_ERR;
  }
  const FaultsGuard lock(number);
  const bool wrap = in_range(number) && is_handler(handler) && !in_borrowed_memory();
  // relaxed: a word alone
  std::uint64_t before = in_range(number) ? handlers[number].load(std::memory_order_relaxed) : 0;
  if (wrap) {
    const auto entry = reinterpret_cast<std::uint64_t>(handler) | (restarts ? kRestarts : 0);
    // order: before the call into the kernel
    before = handlers[number].exchange(entry, std::memory_order_seq_cst);
  }
  const sighandler_t old = call(number, wrap ? ours : handler);
  // relaxed: the kernel has refused, and calls the old handler
  if (old == SIG_ERR && wrap) handlers[number].store(before, std::memory_order_relaxed);
  return old == ours ? reinterpret_cast<sighandler_t>(before & kAddress) : old;
}

bool signal_restarts(int number) {
  // relaxed: a bit by itself
  return in_range(number) && (interrupt.load(std::memory_order_relaxed) & bit(number)) == 0;
}

void note_interrupts(int number, bool interrupts) {
  // relaxed: each is a bit by itself
  if (interrupts) {
    interrupt.fetch_or(bit(number), std::memory_order_relaxed);
    handlers[number].fetch_and(~kRestarts, std::memory_order_relaxed);
  } else {
    interrupt.fetch_and(~bit(number), std::memory_order_relaxed);
    handlers[number].fetch_or(kRestarts, std::memory_order_relaxed);
  }
}

void lock_handlers() { faults_lock.lock(); }
void unlock_handlers() { faults_lock.unlock(); }

}  // namespace clan::preload

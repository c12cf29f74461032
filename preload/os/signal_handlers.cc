#include "os/signal_handlers.h"

#include <sched.h>
#include <ucontext.h>

#include <atomic>
#include <cstdint>

#include "clan/pipe.h"
#include "clan/words.h"
#include "os/memory_owner.h"
#include "os/real.h"
#include "os/signals.h"
#include "os/sock_diag.h"
#include "os/spin_lock.h"
#include "os/sys.h"

namespace clan::preload {

constinit thread_local SignalState t_signals{};

void let_signals_in() {
  KeepErrno keep;
  const std::uint64_t set = t_signals.put_off;
  t_signals.put_off = 0;
  sys::call(SYS_rt_sigprocmask, SIG_UNBLOCK, &set, nullptr, sizeof set);
}

namespace {

// What the application has set, by signal: its handler's address, and how it wants to be called.
/// SA_SIGINFO: the siginfo_t is there
constexpr std::uint64_t kWantsInfo = std::uint64_t{1} << 63;
constexpr std::uint64_t kRestarts = std::uint64_t{1} << 62;  ///< SA_RESTART
constexpr std::uint64_t kAddress = kRestarts - 1;
// order: seq_cst where it is set, before the kernel is told; the signals that are delivered from
// then on read it.
std::atomic<std::uint64_t> handlers[NSIG];
/// of siginterrupt(), for signal(); bits as the kernel's sets, each by itself
std::atomic<std::uint64_t> interrupt{0};

std::uint64_t bit(int number) { return std::uint64_t{1} << (number - 1); }

bool is_fault(int number) {
  switch (number) {
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGTRAP:
    case SIGSYS:
    case SIGABRT: return true;
    default: return false;
  }
}

std::atomic<bool> buffers_guarded{false};

// The handlers of faults are ours and the application's to set.
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
  Undisturbed undisturbed_;
  bool locks_;
};

void handle(int number, siginfo_t* info, void* context);

// The signal comes again when its thread's section is over. False: it cannot be kept.
bool put_off(int number, siginfo_t* info, void* context, bool has_info) {
  KeepErrno keep;
  const std::uint64_t set = bit(number);
  std::uint64_t before = 0;
  sys::call(SYS_rt_sigprocmask, SIG_BLOCK, &set, &before, sizeof set);  // SA_NODEFER
  const long process = sys::call(SYS_getpid), thread = sys::call(SYS_gettid);
  const long rc = has_info ? sys::call(SYS_rt_tgsigqueueinfo, process, thread, number, info)
                           : sys::call(SYS_tgkill, process, thread, number);
  if (rc != 0) {  // RLIMIT_SIGPENDING
    sys::call(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, sizeof before);
    return false;
  }
  ::sigaddset(&static_cast<ucontext_t*>(context)->uc_sigmask, number);
  t_signals.put_off |= set;
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

// The fault of a copy goes on where the copy began; what else we stand for ends the program.
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
  // A fault comes again when we return. What was sent does not.
  if (info->si_code <= 0)
    sys::call(SYS_tgkill, sys::call(SYS_getpid), sys::call(SYS_gettid), number);
}

void handle(int number, siginfo_t* info, void* context) {
  if (number == SIGSEGV || number == SIGBUS) handle_fault(number, info, context);
  const std::uint64_t set = handlers[number].load(std::memory_order_relaxed);
  if (t_signals.sections != 0 && !is_fault(number) &&
      put_off(number, info, context, (set & kWantsInfo) != 0)) {
    return;
  }
  if ((set & kAddress) == 0) return;
  ++t_signals.handled;
  if ((set & kRestarts) == 0) ++t_signals.interrupting;
  // The last thing here: it may jump away or throw, and takes what room there is on the stack.
  reinterpret_cast<void (*)(int, siginfo_t*, void*)>(set & kAddress)(number, info, context);
}

// Not inlined, so that what the caller has in registers is kept.
[[gnu::noinline]] bool guard_copy(void (*copy)(void*), void* argument) {
  void* place[5];
  if (__builtin_setjmp(place) != 0) {
    t_signals.copying = nullptr;
    return false;
  }
  t_signals.copying = place;
  // order: the compiler keeps it; a handler runs in the same thread
  std::atomic_signal_fence(std::memory_order_seq_cst);
  copy(argument);
  // order: the compiler keeps it; a handler runs in the same thread
  std::atomic_signal_fence(std::memory_order_seq_cst);
  t_signals.copying = nullptr;
  return true;
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

void guard_buffers() {
  // PAIR preload.guard: the handlers stand
  if (words::look(buffers_guarded)) return;
  KeepErrno keep;
  const FaultsGuard lock(SIGSEGV);
  if (buffers_guarded.load(std::memory_order_relaxed)) return;
  for (const int number : {SIGSEGV, SIGBUS}) {
    struct sigaction now {};
    if (real().sigaction(number, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) continue;
    const struct sigaction ours_then = for_faults();
    // order: before the kernel is told
    handlers[number].store(0, std::memory_order_seq_cst);
    real().sigaction(number, &ours_then, nullptr);
  }
  Pipe::guard_copies(guard_copy);
  words::publish(buffers_guarded, true);  // PAIR preload.guard
}

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
    // order: before the kernel is told
    before = handlers[number].exchange(0, std::memory_order_seq_cst);
    with = for_faults();
  } else if (wrap) {
    with = *action;
    // order: before the kernel is told
    before = handlers[number].exchange(entry_of(with), std::memory_order_seq_cst);
    with.sa_sigaction = handle;
    with.sa_flags |= SA_SIGINFO;
  }
  const int rc = real().sigaction(number, wrap ? &with : action, old);
  if (rc != 0) {
    // relaxed: the kernel has refused, and delivers as before
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
    // order: before the kernel is told
    before = handlers[number].exchange(entry, std::memory_order_seq_cst);
  }
  const sighandler_t old = call(number, wrap ? ours : handler);
  // relaxed: the kernel has refused, and delivers as before
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

}  // namespace clan::preload

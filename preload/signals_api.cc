// sigaction() and its older kin: see signals.h.
#include <signal.h>
#include <ucontext.h>

#include <cstdint>

#include "real.h"
#include "signals.h"

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
constexpr std::uint64_t kWantsInfo = std::uint64_t{1} << 63;  ///< SA_SIGINFO: the siginfo_t is there
constexpr std::uint64_t kRestarts = std::uint64_t{1} << 62;   ///< SA_RESTART
constexpr std::uint64_t kAddress = kRestarts - 1;
std::atomic<std::uint64_t> handlers[NSIG];
std::atomic<std::uint64_t> interrupt{0};  ///< of siginterrupt(), for signal(); bits as the kernel's sets

std::uint64_t bit(int number) { return std::uint64_t{1} << (number - 1); }

bool is_fault(int number) {
  switch (number) {
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGTRAP:
    case SIGSYS:
    case SIGABRT:
      return true;
    default:
      return false;
  }
}

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
  if (real().sigaction(number, nullptr, &now) == 0 && (now.sa_flags & static_cast<int>(SA_RESETHAND)) != 0 &&
      now.sa_handler == SIG_DFL) {
    now.sa_sigaction = handle;
    real().sigaction(number, &now, nullptr);
  }
  return true;
}

void handle(int number, siginfo_t* info, void* context) {
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

// What signal() and its like do, by the C library's function. A child of vfork() has handlers of its own, but
// not a table.
template <typename Call>
sighandler_t set_handler(int number, sighandler_t handler, bool restarts, Call&& call) {
  const bool wrap = in_range(number) && is_handler(handler) && !in_borrowed_memory();
  std::uint64_t before = in_range(number) ? handlers[number].load() : 0;
  if (wrap) {
    before = handlers[number].exchange(reinterpret_cast<std::uint64_t>(handler) | (restarts ? kRestarts : 0));
  }
  const sighandler_t old = call(wrap ? ours : handler);
  if (old == SIG_ERR && wrap) handlers[number].store(before);
  return old == ours ? reinterpret_cast<sighandler_t>(before & kAddress) : old;
}

}  // namespace
}  // namespace clan::preload

using namespace clan::preload;

CLAN_INTERPOSE int sigaction(int number, const struct sigaction* action, struct sigaction* old) noexcept {
  if (!in_range(number)) return real().sigaction(number, action, old);
  const bool wrap = action != nullptr && is_handler(action->sa_handler) && !in_borrowed_memory();
  std::uint64_t before = handlers[number].load();
  struct sigaction with {};
  if (wrap) {
    with = *action;
    before = handlers[number].exchange(entry_of(with));
    with.sa_sigaction = handle;
    with.sa_flags |= SA_SIGINFO;
  }
  const int rc = real().sigaction(number, wrap ? &with : action, old);
  if (rc != 0) {
    if (wrap) handlers[number].store(before);
    return rc;
  }
  if (old != nullptr && old->sa_sigaction == handle) {
    old->sa_handler = reinterpret_cast<sighandler_t>(before & kAddress);
    if ((before & kWantsInfo) == 0) old->sa_flags &= ~SA_SIGINFO;
  }
  return rc;
}
CLAN_INTERPOSE int __sigaction(int number, const struct sigaction* action, struct sigaction* old) noexcept {
  return sigaction(number, action, old);
}

CLAN_INTERPOSE sighandler_t signal(int number, sighandler_t handler) noexcept {
  const bool restarts = in_range(number) && (interrupt.load() & bit(number)) == 0;
  return set_handler(number, handler, restarts,
                     [number](sighandler_t with) { return real().signal(number, with); });
}
CLAN_INTERPOSE sighandler_t bsd_signal(int number, sighandler_t handler) noexcept {
  return signal(number, handler);
}
CLAN_INTERPOSE sighandler_t ssignal(int number, sighandler_t handler) noexcept {
  return signal(number, handler);
}
CLAN_INTERPOSE sighandler_t __sysv_signal(int number, sighandler_t handler) noexcept {
  return set_handler(number, handler, false,
                     [number](sighandler_t with) { return real().__sysv_signal(number, with); });
}
CLAN_INTERPOSE sighandler_t sysv_signal(int number, sighandler_t handler) noexcept {
  return __sysv_signal(number, handler);
}
CLAN_INTERPOSE sighandler_t sigset(int number, sighandler_t handler) noexcept {
  return set_handler(number, handler, false,
                     [number](sighandler_t with) { return real().sigset(number, with); });
}
CLAN_INTERPOSE int siginterrupt(int number, int interrupts) noexcept {
  const int rc = real().siginterrupt(number, interrupts);
  if (rc != 0) return rc;
  if (interrupts != 0) {
    interrupt.fetch_or(bit(number));
    handlers[number].fetch_and(~kRestarts);
  } else {
    interrupt.fetch_and(~bit(number));
    handlers[number].fetch_or(kRestarts);
  }
  return rc;
}

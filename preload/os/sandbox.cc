#include "os/sandbox.h"

#include <linux/sched.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>

#include "clan/detail/log.h"
#include "clan/detail/words.h"
#include "clan/face/reason_text.h"
#include "os/memory_owner.h"
#include "os/scratch.h"
#include "os/signals.h"
#include "os/sys.h"

namespace clan::preload {
namespace {

enum State { kUnknown, kNoFilter, kUntried, kBeingTried, kPermits, kRefuses };
std::atomic<int> state{kUnknown};
std::atomic<bool> forked{false};
std::atomic<bool> counting{true}, taking{true};
std::atomic<std::uint32_t> refused{0};             ///< a call of reasons::kCallNames
constexpr std::uint32_t kMemoryPasses = 1u << 31;  ///< in `refused`

struct Status {
  int filter = -1;   ///< 0: none
  int filters = -1;  ///< their number
  int threads = 0;
  int parent = 0;
};

// Reads in pieces: the list of groups may be long.
Status read_status(const char* path = "/proc/self/status") {
  Status found;
  const int fd = static_cast<int>(sys::call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
  if (fd < 0) return found;
  const Scratch memory(Scratch::kUsual);
  char* const text = memory.as<char>();
  constexpr std::size_t kKept = 64;  // of the previous piece, for a line across both
  std::size_t kept = 0;
  const auto number_behind = [&](const char* name, int* number) {
    const char* at = std::strstr(text, name);
    if (at != nullptr && std::strchr(at, '\n') != nullptr)
      *number = std::atoi(at + std::strlen(name));
  };
  for (long n; text != nullptr &&
               (n = sys::call(SYS_read, fd, text + kept, Scratch::kUsual - 1 - kept)) > 0;) {
    const std::size_t end = kept + static_cast<std::size_t>(n);
    text[end] = 0;
    number_behind("\nThreads:\t", &found.threads);
    number_behind("\nSeccomp:\t", &found.filter);
    number_behind("\nSeccomp_filters:\t", &found.filters);
    number_behind("\nPPid:\t", &found.parent);
    kept = end < kKept ? end : kKept;
    std::memmove(text, text + end - kept, kept);
  }
  sys::close(fd);
  return found;
}

// A call that does nothing, and the errno that the kernel returns; 0: none.
struct Probe {
  const char* name;
  long number;
  long a[6];
  int expected;
};
constexpr int kAny = -1;  ///< any errno will do, if it does not kill
constexpr long kNone = -1;
// Stand for addresses, so that the table is a constant: it is needed before constructors run.
constexpr long kBuffer = -1001, kNoTime = -1002, kMessage = -1003, kName = -1004, kNoName = -1005;

const void* meant_by(long argument) {
  static int buffer[64];
  static msghdr message;
  static const timespec no_time{0, 0};
  switch (argument) {
    case kBuffer: return buffer;
    case kNoTime: return &no_time;
    case kMessage: return &message;
    case kName: return "clan";
    case kNoName: return "";
    default: return reinterpret_cast<const void*>(argument);
  }
}

long try_call(const Probe& p) {
  const void* a[6];
  for (int i = 0; i < 6; ++i) a[i] = meant_by(p.a[i]);
  return sys::call(p.number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// The parent needs the first one to learn of the child's end.
constexpr Probe kNeeded[] = {
    {"wait4", SYS_wait4, {kNone, 0, WNOHANG}, ECHILD},
    {"memfd_create", SYS_memfd_create, {kName, kNone}, EINVAL},
    {"ftruncate", SYS_ftruncate, {kNone, 0}, EBADF},
    {"fcntl", SYS_fcntl, {kNone, F_GETFD}, EBADF},
    {"newfstatat", SYS_newfstatat, {kNone, kNoName, kBuffer, AT_EMPTY_PATH}, EBADF},
    {"mmap", SYS_mmap, {0, 0, PROT_READ | PROT_WRITE, MAP_SHARED, kNone, 0}, EBADF},
    {"munmap", SYS_munmap, {0, 0}, EINVAL},
    {"close", SYS_close, {kNone}, EBADF},
    {"prlimit64", SYS_prlimit64, {0, RLIMIT_NOFILE, 0, kBuffer}, 0},
    {"getpid", SYS_getpid, {}, 0},
    // These were for memory that others can read (kOfMemory).
    {"socket(AF_UNIX)", SYS_socket, {AF_UNIX, 0xf, 0}, EINVAL},
    {"socket(AF_NETLINK)", SYS_socket, {AF_NETLINK, SOCK_DGRAM, 0xff}, kAny},
    {"bind", SYS_bind, {kNone}, EBADF},
    {"listen", SYS_listen, {kNone}, EBADF},
    {"connect", SYS_connect, {kNone}, EBADF},
    {"accept4", SYS_accept4, {kNone}, EBADF},
    {"getsockname", SYS_getsockname, {kNone}, EBADF},
    {"getpeername", SYS_getpeername, {kNone}, EBADF},
    {"getsockopt", SYS_getsockopt, {kNone, SOL_SOCKET, SO_ERROR, kBuffer, kBuffer}, EBADF},
    {"setsockopt", SYS_setsockopt, {kNone, SOL_SOCKET, SO_RCVLOWAT, kBuffer, 4}, EBADF},
    {"shutdown", SYS_shutdown, {kNone}, EBADF},
    {"sendmsg", SYS_sendmsg, {kNone, kMessage, 0}, EBADF},
    {"recvmsg", SYS_recvmsg, {kNone, kMessage, 0}, EBADF},
    {"sendto", SYS_sendto, {kNone, kBuffer, 1}, EBADF},
    {"recvfrom", SYS_recvfrom, {kNone, kBuffer, 1}, EBADF},
    {"ioctl", SYS_ioctl, {kNone, FIONREAD, kBuffer}, EBADF},
    {"ppoll", SYS_ppoll, {0, 0, kNoTime, 0, 8}, 0},
    {"epoll_ctl", SYS_epoll_ctl, {kNone, EPOLL_CTL_DEL, kNone}, EBADF},
    {"epoll_pwait", SYS_epoll_pwait, {kNone, kBuffer, 1, 0, 0, 8}, EBADF},
    {"eventfd2", SYS_eventfd2, {0, kNone}, EINVAL},
    {"fstatfs", SYS_fstatfs, {kNone, kBuffer}, EBADF},
    {"openat", SYS_openat, {kNone, kName, O_RDONLY}, EBADF},
    {"readlinkat", SYS_readlinkat, {kNone, kName, kBuffer, 1}, EBADF},
    {"getdents64", SYS_getdents64, {kNone, kBuffer, 256}, EBADF},
    {"read", SYS_read, {kNone, kBuffer, 1}, EBADF},
    {"write", SYS_write, {kNone, kBuffer, 1}, EBADF},
    {"pread64", SYS_pread64, {kNone, kBuffer, 1, 0}, EBADF},
    {"mremap", SYS_mremap, {0, 0, 0, MREMAP_MAYMOVE}, EINVAL},
    {"madvise", SYS_madvise, {0, 0, MADV_NORMAL}, 0},
    {"futex", SYS_futex, {kBuffer, 1 /* FUTEX_WAKE */, 0}, 0},
    {"nanosleep", SYS_nanosleep, {kNoTime, 0}, 0},
    {"sched_yield", SYS_sched_yield, {}, 0},
    {"gettid", SYS_gettid, {}, 0},
    {"kill", SYS_kill, {0x7fff'ffff, 0}, ESRCH},
    {"tgkill", SYS_tgkill, {0x7fff'ffff, 0x7fff'ffff, 0}, ESRCH},
    {"rt_tgsigqueueinfo", SYS_rt_tgsigqueueinfo, {kNone, kNone, 0, 0}, EFAULT},
    {"rt_sigaction", SYS_rt_sigaction, {SIGUSR1, 0, 0, 8}, 0},
    {"rt_sigprocmask", SYS_rt_sigprocmask, {SIG_BLOCK, 0, 0, 8}, 0},
    // Where these are refused, connections stay on TCP for want of bells.
    {"pipe2", SYS_pipe2, {0, kNone}, kAny},
    {"epoll_create1", SYS_epoll_create1, {kNone}, kAny},
    {"timerfd_create", SYS_timerfd_create, {kNone, kNone}, kAny},
    {"timerfd_settime", SYS_timerfd_settime, {kNone, kNone, kBuffer, 0}, kAny},
    {"timerfd_gettime", SYS_timerfd_gettime, {kNone, kBuffer}, kAny},
    // Connections can do without these (kWishes).
    {"semget", SYS_semget, {0x7fff'ffff, 1, 0}, kAny},
    {"semctl", SYS_semctl, {kNone, 0, 13 /* GETALL */, kBuffer}, kAny},
    {"semop", SYS_semop, {kNone, kBuffer, 1}, kAny},
    {"pidfd_open", SYS_pidfd_open, {kNone, 0}, kAny},
    {"pidfd_getfd", SYS_pidfd_getfd, {kNone, kNone, 0}, kAny},
};
constexpr int kProbes = static_cast<int>(std::size(kNeeded));
constexpr int kOfMemory = 10;
constexpr int kWishes = 5, kToTake = 2;

constexpr std::uint32_t call_of(const Probe& p) {
  const auto number = static_cast<std::uint32_t>(p.number);
  return p.number == SYS_socket ? reasons::socket_of(static_cast<std::uint32_t>(p.a[0])) : number;
}
static_assert(std::string_view(kNeeded[kOfMemory - 1].name) == "getpid");
static_assert(std::all_of(kNeeded, kNeeded + kProbes - kWishes, [](const Probe& p) {
  return std::string_view(reasons::name_of_call(call_of(p))) == p.name;
}));

// Shared by parent and child; the child writes.
struct Progress {
  std::atomic<int> passed{0};  ///< probes
  std::atomic<bool> refused{false};
};

// The child: with all signals blocked, and in the parent's table of descriptors, as copies would
// keep connections open.
[[noreturn]] void try_all(Progress& progress) {
  // No core file for dying as expected; 1 also for programs that collect them.
  const rlimit none{1, 1};
  sys::call(SYS_prlimit64, 0, RLIMIT_CORE, &none, nullptr);
  for (const Probe& p : kNeeded) {
    if (progress.refused.load(std::memory_order_relaxed)) break;  // relaxed: written here
    const int said = try_call(p) < 0 ? errno : 0;
    if (said == p.expected || p.expected == kAny) {
      progress.passed.fetch_add(1, std::memory_order_relaxed);  // relaxed: see `refused`
    } else {
      // PAIR preload.probes: publishes `passed`
      words::store_release(progress.refused, true);
    }
  }
  for (;;) sys::call(SYS_exit_group, 0);
}

// One of the C library's two ways to make threads and processes is known to pass. The child's end
// sends no signal, and no wait() of the program finds it.
long make_child() {
  clone_args how{};
  how.flags = CLONE_FILES;
  // relaxed: this thread has seen it
  const long pid =
      forked.load(std::memory_order_relaxed) ? -1 : sys::call(SYS_clone3, &how, sizeof how);
  return pid >= 0 ? pid : sys::call(SYS_clone, CLONE_FILES, 0, 0, 0, 0);
}

// The number of probes that pass before the first refusal. -1: no child can be made.
int passing(Progress& progress) {
  constexpr int kNaps = 1000;  // for the first probe
  const timespec nap{0, 200'000};
  const AllBlocked all_blocked;
  const long pid = make_child();
  if (pid == 0) try_all(progress);
  // PAIR preload.probes: sees `passed`
  const auto is_refused = [&] { return words::load_acquire(progress.refused); };
  // relaxed: a number alone; the kernel reports the child's end
  const auto passed = [&] { return progress.passed.load(std::memory_order_relaxed); };
  for (int i = 0; pid > 0 && passed() == 0 && !is_refused() && i < kNaps; ++i) {
    sys::call(SYS_nanosleep, &nap, nullptr);
  }
  if (pid > 0 && passed() > 0) {
    while (sys::call(SYS_wait4, pid, nullptr, __WALL, nullptr) < 0 && errno == EINTR) {
    }
  }
  return pid > 0 ? passed() : -1;
}

int try_filter() {
  void* memory = sys::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return kUntried;
  const int passed = passing(*new (memory) Progress);
  sys::munmap(memory, sizeof(Progress));
  if (passed < 0) return kUntried;
  if (passed >= kProbes - kWishes) {
    // relaxed: published by `state`
    counting.store(passed >= kProbes - kToTake, std::memory_order_relaxed);
    taking.store(passed == kProbes, std::memory_order_relaxed);
    CLAN_INFO("the filter of system calls lets pass what connections in shared memory need");
    return kPermits;
  }
  // relaxed: published by `state`
  refused.store(call_of(kNeeded[passed]) | (passed >= kOfMemory ? kMemoryPasses : 0),
                std::memory_order_relaxed);
  CLAN_INFO(
      "a filter of system calls is in the way of shared memory: %s does not pass; connections stay "
      "on TCP",
      kNeeded[passed].name);
  return kRefuses;
}

// Without a filter something else may refuse: then the errno for a bad descriptor is another.
bool reach_kernel() {
  for (const Probe& p : kNeeded) {
    if (p.expected != EBADF) continue;
    if (try_call(p) < 0 && errno == EBADF) continue;
    // relaxed: a word alone
    refused.store(call_of(p) | kMemoryPasses, std::memory_order_relaxed);
    CLAN_INFO("%s is refused, and shared memory needs it; connections stay on TCP", p.name);
    return false;
  }
  return true;
}

// If the parent has as many filters, it made this process under them: a shell in a container, not
// systemd, which has none.
bool made_by_filtered(const Status& own) {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/%d/status", own.parent);
  return own.parent > 0 && own.filters > 0 && read_status(path).filters == own.filters;
}

// Asks at the 1st, 2nd, 4th… call, as /proc is slow.
bool may_try() {
  static std::atomic<std::uint32_t> asked{0};
  if (forked.load(std::memory_order_relaxed)) return true;
  const std::uint32_t time = asked.fetch_add(1, std::memory_order_relaxed) + 1;
  if (!std::has_single_bit(time)) return false;
  const Status status = read_status();
  if (status.threads > 1) return true;
  if (made_by_filtered(status)) {
    forked.store(true, std::memory_order_relaxed);
    return true;
  }
  if (time == 1) {
    CLAN_INFO(
        "a filter of system calls is there, and cannot be tried before the program has made a "
        "process or a thread; until then connections stay on TCP");
  }
  return false;
}

}  // namespace

bool is_filtered() {
  int now = state.load(std::memory_order_relaxed);  // relaxed: each thread finds the same
  if (now == kUnknown) {
    KeepErrno keep;
    int filter = read_status().filter;
    if (filter < 0) filter = static_cast<int>(sys::call(SYS_prctl, PR_GET_SECCOMP, 0, 0, 0, 0));
    now = filter == 0 ? kNoFilter : kUntried;
    int unknown = kUnknown;
    // relaxed: a word alone
    state.compare_exchange_strong(unknown, now, std::memory_order_relaxed);
  }
  return now == kUntried || now == kBeingTried || now == kRefuses;
}

bool permits_moving() {
  static std::atomic<int> reaches{-1};
  if (state.load(std::memory_order_relaxed) == kUnknown) (void)is_filtered();
  int now = state.load(std::memory_order_relaxed);  // relaxed: each thread finds the same
  if (now == kNoFilter) {
    int known = reaches.load(std::memory_order_relaxed);  // relaxed: each thread finds the same
    if (known < 0) {
      KeepErrno keep;
      known = reach_kernel() ? 1 : 0;
      reaches.store(known, std::memory_order_relaxed);
    }
    return known != 0;
  }
  if (now != kUntried) return now == kPermits;
  KeepErrno keep;
  const DeferSignals undisturbed;
  // PAIR preload.filter: one thread tries it
  if (!may_try() || !words::cas(state, now, kBeingTried)) return false;
  const int found = try_filter();
  // PAIR preload.filter: publishes `counting`, `taking` and `refused`
  words::store_release(state, found);
  if (found == kPermits) note_process();
  return found == kPermits;
}

bool permits_counting() {
  const int now = words::load_acquire(state);  // PAIR preload.filter
  // relaxed: behind `state`
  return now == kNoFilter || (now == kPermits && counting.load(std::memory_order_relaxed));
}

bool permits_taking() {
  const int now = words::load_acquire(state);  // PAIR preload.filter
  // relaxed: behind `state`
  return now == kNoFilter || (now == kPermits && taking.load(std::memory_order_relaxed));
}

Refusal refusal_found() {
  const int now = words::load_acquire(state);  // PAIR preload.filter
  // relaxed: behind `state`
  return {refused.load(std::memory_order_relaxed) & ~kMemoryPasses, now == kRefuses};
}

bool permits_memory() {
  (void)is_filtered();
  const int now = words::load_acquire(state);  // PAIR preload.filter
  // relaxed: behind `state`
  return now == kNoFilter || now == kPermits ||
         (now == kRefuses && (refused.load(std::memory_order_relaxed) & kMemoryPasses) != 0);
}

void note_fork(bool in_child) {
  forked.store(true, std::memory_order_relaxed);  // relaxed: a thread that sees it late asks again
  int trying = kBeingTried;                       // by a thread that the child does not have
  // relaxed: the child has one thread
  if (in_child) state.compare_exchange_strong(trying, kUntried, std::memory_order_relaxed);
}

}  // namespace clan::preload

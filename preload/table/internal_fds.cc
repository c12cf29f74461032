#include "table/internal_fds.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>

#include "clan/face/reasons.h"
#include "kernel/proc.h"
#include "os/real.h"
#include "os/sandbox.h"
#include "os/scratch.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/hooks.h"
#include "state/withdraw.h"
#include "table/fd_table.h"

namespace clan::preload {
namespace {

constexpr int kMostNumbers = 1 << 20;
constexpr int kFirstOfMany = 48 * 1024;

// Numbers that ours have had; the application may have some by now. relaxed, all of it: a thread
// learns of a number in an ordered way
constinit std::atomic<std::uint64_t> had[kMostNumbers / 64]{};
std::atomic<bool> had_any{false};
/// Ours have numbers from here on: below, the application was refused one.
std::atomic<int> first_free{0};

constexpr std::uint64_t bit_of(unsigned fd) { return std::uint64_t{1} << fd % 64; }

int limit() {
  rlimit most{};
  ::getrlimit(RLIMIT_NOFILE, &most);
  return static_cast<int>(std::min<rlim_t>(most.rlim_cur, kMostNumbers));
}

// The connection goes back to TCP. The peer notices by its bell; our sleepers check again, and then
// sleep briefly. A bell in use by a sleeper stays. Returns the number of descriptors closed.
int give_up_bells(int fd, Socket& s) {
  if (!hooks.lost_bells(fd, s)) return 0;
  s.ringing.lock();
  const int rung = s.others_bell.take();
  s.ringing.unlock();
  const int bell = s.bell.take();
  // order: see BellSleep
  const bool sleeps = s.bell_sleepers.load(std::memory_order_seq_cst) > 0;
  const auto close = [](int one) { return one >= 0 && sys::close(one) == 0 ? 1 : 0; };
  int closed = close(rung);
  if (sleeps)
    s.bell.keep(bell);
  else
    closed += close(bell) + close(s.bell_set.fd.take()) + close(s.receive_set.fd.take());
  hooks.going_back(s);
  return closed;
}

// Closes ours below `end`. Returns their number.
int close_ours_below(int end) {
  int closed = 0;
  const auto ours = [end](int number) { return number >= 0 && number < end; };
  for_each_socket([&](int fd, Socket& s) {
    const DeferSignals undisturbed;
    const bool has_pipe = s.shared() || (s.state_now() == Socket::State::kKernel && s.pipe);
    if (has_pipe && (ours(s.bell.get()) || ours(s.others_bell.get())))
      closed += give_up_bells(fd, s);
    if (!s.moving.try_lock()) return;
    // A connection back on TCP keeps its pipe: a thread may be reading it.
    if (s.shared() || s.state_now() == Socket::State::kKernel) {
      if (ours(s.pipe.memfd())) {
        close_descriptor(s);
        ++closed;
      }
    } else if (ours(s.offer_fd.get()) || ours(s.window_fd.get()) ||
               (s.pipe && ours(s.pipe.memfd()))) {
      stay(fd, s, reasons::Why::kNoDescriptors);
      ++closed;
    }
    s.moving.unlock();
  });
  return closed + (move_slots(0, static_cast<unsigned>(end) - 1, false) ? 1 : 0);
}

int note_ours(int high) {
  if (high < 0) return -1;
  had[high / 64].fetch_or(bit_of(static_cast<unsigned>(high)), std::memory_order_relaxed);
  had_any.store(true, std::memory_order_relaxed);
  return high;
}

// By number: not the application's call, which a build that links both would use.
int duplicate(int fd, int from) {
  return static_cast<int>(sys::call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, from));
}

// -1: no room.
int copy_from(int fd, int from) {
  return note_ours(duplicate(fd, std::max(from, first_free.load(std::memory_order_relaxed))));
}

struct CopyAbove {
  int fd, from, high;
  rlimit raised;
};

// Runs in a process that shares our memory and descriptors but has limits of its own.
int copy_in_helper(void* argument) {
  auto& copy = *static_cast<CopyAbove*>(argument);
  sys::call(SYS_prlimit64, 0, RLIMIT_NOFILE, &copy.raised, nullptr);
  copy.high = duplicate(copy.fd, copy.from);
  return 0;
}

// Copies above the soft limit, which takes a tenth of a millisecond. -1: no room.
int copy_above(int fd) {
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  const rlimit raised{std::min<rlim_t>(now.rlim_max, kMostNumbers), now.rlim_max};
  if (now.rlim_cur >= kFirstOfMany || raised.rlim_cur <= now.rlim_cur) return -1;
  constexpr std::size_t kStack = 16 * 1024;
  const Scratch stack(kStack);
  if (!stack) return -1;
  CopyAbove copy{fd, static_cast<int>(now.rlim_cur), -1, raised};
  const KeepErrno keep;
  const std::uint64_t all = ~std::uint64_t{0};
  std::uint64_t before = 0;
  sys::call(SYS_rt_sigprocmask, SIG_BLOCK, &all, &before, sizeof all);  // of the helper, too
  const int pid = real().clone(copy_in_helper, stack.as<char>() + kStack,
                               CLONE_VM | CLONE_FILES | CLONE_VFORK, &copy);
  while (pid > 0 && sys::call(SYS_wait4, pid, nullptr, __WALL, nullptr) < 0 && errno == EINTR) {
  }
  sys::call(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, sizeof before);
  return note_ours(copy.high);
}

// Tries the upper quarter, then above the soft limit, then the upper half.
int copy_of(int fd) {
  const int most = limit();
  int high = copy_from(fd, first_internal(most));
  if (high < 0) high = copy_above(fd);
  return high >= 0 ? high : copy_from(fd, most / 2);
}

// Returns where bells begin among the internal numbers.
int first_spare(int most) {
  constexpr int kOfPipes = 8 * 1024;
  const int first = first_internal(most);
  return first + std::min((most - first) / 3, kOfPipes);
}

}  // namespace

constinit std::atomic<int> passing_memfd{-1};

bool move_slots(unsigned first, unsigned last, bool closed_by_caller) {
  int memfd = passing_memfd.load(std::memory_order_relaxed);  // relaxed: a number alone
  if (memfd < 0 || static_cast<unsigned>(memfd) < first || static_cast<unsigned>(memfd) > last)
    return false;
  const KeepErrno keep;
  const int other =
      last < kMostNumbers ? note_ours(duplicate(memfd, static_cast<int>(last) + 1)) : -1;
  // relaxed: one thread moves it
  if (!passing_memfd.compare_exchange_strong(memfd, other, std::memory_order_relaxed)) {
    if (other >= 0) sys::close(other);
    return false;
  }
  if (!closed_by_caller) sys::close(memfd);
  return true;
}

int move_high(int fd) {
  if (fd < 0) return fd;
  const int high = copy_of(fd);
  KeepErrno keep;
  sys::close(fd);
  return high;
}

int move_high_to_spare(int fd) {
  if (fd < 0) return fd;
  const KeepErrno keep;
  int high = copy_from(fd, first_spare(limit()));
  if (high < 0) high = copy_above(fd);
  sys::close(fd);
  return high;
}

bool move_high(Pipe& pipe) {
  const int high = copy_of(pipe.memfd());
  if (high < 0) return false;
  sys::close(pipe.memfd());
  pipe.set_memfd(high);
  return true;
}

Result<Pipe> open_high(int memfd, int end) {
  auto pipe = Pipe::open(memfd, end);
  if (pipe && !move_high(*pipe)) {
    sys::close(pipe->memfd());
    pipe->set_memfd(-1);
  }
  return pipe;
}

void close_descriptor(Socket& s) {
  const int memfd = s.pipe.memfd();
  s.pipe.set_memfd(-1);
  sys::close(memfd);
}

bool is_ours(int fd) {
  const auto number = static_cast<unsigned>(fd);
  return number < kMostNumbers &&
         (had[number / 64].load(std::memory_order_relaxed) & bit_of(number)) != 0;
}

void disown(unsigned first, unsigned last) {
  if (!had_any.load(std::memory_order_relaxed)) return;
  const auto gone = [=](int number) {
    return number >= 0 && static_cast<unsigned>(number) >= first &&
           static_cast<unsigned>(number) <= last;
  };
  (void)move_slots(first, last, true);
  for_each_socket([&](int fd, Socket& s) {
    if (s.pipe && gone(s.pipe.memfd())) s.pipe.set_memfd(-1);
    for (auto* kept : {&s.offer_fd, &s.window_fd, &s.bell_set.fd, &s.receive_set.fd}) {
      if (gone(kept->get())) kept->keep(-1);
    }
    if (!gone(s.bell.get()) && !gone(s.others_bell.get())) return;
    if (s.shared() && !gone(fd)) (void)hooks.lost_bells(fd, s);
    if (gone(s.bell.get())) s.bell.keep(-1);
    {
      const DeferSignals undisturbed;
      const std::lock_guard rings(s.ringing);
      if (gone(s.others_bell.get())) s.others_bell.keep(-1);
    }
    if (s.shared()) hooks.going_back(s);  // no sleeper waits for the bell
  });
  if (first == last && first < kMostNumbers)
    had[first / 64].fetch_and(~bit_of(first), std::memory_order_relaxed);
}

int highest_of_application() {
  const KeepErrno keep;
  const Scratch zeroes(kMostNumbers / 8);   // more than Scratch keeps
  if (!zeroes || is_filtered()) return -1;  // which may kill for it
  const int fds = static_cast<int>(
      sys::call(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fds < 0) return -1;
  struct Numbers {
    std::uint8_t* bits;
    void add(int fd) {
      if (fd >= 0 && fd < kMostNumbers) bits[fd / 8] |= static_cast<std::uint8_t>(1 << fd % 8);
    }
    bool has(int fd) const { return fd < kMostNumbers && (bits[fd / 8] >> fd % 8 & 1) != 0; }
  } ours{zeroes.as<std::uint8_t>()};
  ours.add(fds);
  ours.add(passing_memfd.load(std::memory_order_relaxed));  // relaxed: a number alone
  for_each_socket([&ours](int, Socket& s) {
    if (s.pipe) ours.add(s.pipe.memfd());
    for (const KeptFd* fd :
         {&s.offer_fd, &s.window_fd, &s.bell, &s.others_bell, &s.bell_set.fd, &s.receive_set.fd})
      ours.add(fd->get());
  });
  int highest = 0;
  DirectoryReader names(fds);
  while (const char* name = names.next()) {
    const int fd = std::atoi(name);  // 0 of "." and ".."
    if (!ours.has(fd)) highest = std::max(highest, fd);
  }
  sys::close(fds);
  return highest;
}

bool give_up_ours() {
  if (!had_any.load(std::memory_order_relaxed)) return false;
  const KeepErrno keep;
  const int end = limit();
  first_free.store(end, std::memory_order_relaxed);
  return close_ours_below(end) > 0;
}

}  // namespace clan::preload

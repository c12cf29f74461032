#include "engine/pipe_lock.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cerrno>

#include "base/process.h"
#include "clan/clock.h"
#include "clan/cpu.h"

namespace clan {

constinit thread_local pipes::Thread pipes::t_thread;
constinit thread_local WaitBudget pipes::t_call_waits{WaitBudget::kMostInCallsNs,
                                                      WaitBudget::kShortInCallsNs};

namespace {

constexpr int kSpinsBeforeYield = 200;
constexpr int kYieldsBeforeNap = 64;
constexpr long kNapNs = 1'000'000;
constexpr std::uint32_t kMostThreadId = 1u << 22;  ///< the kernel's limit
/// of a call, while memory is being released
constexpr std::uint64_t kReleaseInCallNs = 2'000'000;
constexpr std::uint64_t kUnseenReleaseNs = 2'000'000'000;
constexpr int kRoundsWithoutWait = 2;
/// between two looks of a thread at what owners have mapped: so long, and so many times as long as
/// the last look took
constexpr std::uint64_t kMapsNs = 50'000'000, kMapsRest = 64;

// A process that is in a call on a pipe has it mapped. A word that names a thread of another one is
// a lie, or its thread has died and the number is another's by now: it is as good as not there. Of
// owners that /proc does not show to us it is not known. Asked seldom, as /proc takes its time.
bool has_not_mapped(std::uint32_t thread, std::uint64_t inode) {
  // in handlers, too: initial-exec needs no call
  static thread_local struct {
    std::uint64_t next_ns, inode;
    std::uint32_t thread;
    bool not_mapped;
  } last __attribute__((tls_model("initial-exec")));
  const std::uint64_t now = monotonic_ns();
  const bool same = last.thread == thread && last.inode == inode;
  if (now < last.next_ns) return same && last.not_mapped;
  const int saved_errno = errno;
  last = {0, inode, thread, sys::maps_nothing_of(static_cast<pid_t>(thread), inode)};
  const std::uint64_t end = monotonic_ns();
  last.next_ns = end + std::max(kMapsNs, kMapsRest * (end - now));
  errno = saved_errno;
  return last.not_mapped;
}

std::uint32_t thread_of(std::uint32_t owner) { return owner & sys::kThreadId; }

// A yield, which may take a slice of time. That of another process, or of nobody, is on account of
// `of_thread`; false: nothing of that is left.
bool yield_to(std::uint32_t owner, std::uint32_t me, WaitBudget& of_thread) {
  const int saved_errno = errno;
  const bool ours = owner != me && sys::call(SYS_tgkill, sys::call(SYS_getpid), owner, 0) == 0;
  errno = saved_errno;
  const std::uint64_t before = monotonic_ns();
  if (!ours && of_thread.left_ns(before) < CallWait::kLeastNs) return false;
  sched_yield();
  const std::uint64_t after = monotonic_ns();
  if (!ours) of_thread.spend(after, after - before);
  return true;
}

}  // namespace

// True: the lock may be taken from it. Breaks the pipe if the owner is not to be waited for any
// more, and cannot be said to have died.
bool Pipe::owner_has_died(OwnerWait& wait, std::uint32_t owner) const {
  const std::uint32_t thread = thread_of(owner);
  if (owner == 0) return false;
  if (thread == 0 || thread > kMostThreadId) return broke("a lock that is no thread's"), false;
  const bool releases = (owner & pipes::kReleases) != 0;
  if (!releases && sys::has_ended(owner)) return true;
  // The thread that releases may count in another pid namespace, or be the other end's.
  const bool elsewhere = sys::is_of_another_namespace(owner);
  const bool cannot_be =
      thread == pipes::thread_id() ||
      (!releases && (elsewhere || (wait.gave_up() && has_not_mapped(thread, inode_))));
  switch (wait.look(cannot_be ? 0 : thread, owner_waits_,
                    releases ? kUnseenReleaseNs : OwnerWait::kUnseenNs)) {
    case OwnerWait::Owner::kIsWaitedFor: break;
    case OwnerWait::Owner::kHasDied:
      if (!elsewhere && sys::pid_namespace() != 0) return true;
      broke("the owner of a lock has died");
      break;
    case OwnerWait::Owner::kKeepsIt: broke("a lock that is not let go"); break;
  }
  return false;
}

bool Pipe::is_held_up(bool of_sender) const {
  const auto& mine = page_->ends[end_];
  // relaxed: a glance; the next owner of the lock sees what was done under it
  const std::uint32_t owner =
      (of_sender ? mine.sender.lock : mine.receiver.lock).load(std::memory_order_relaxed);
  return owner != 0 && !broken() && !owner_has_died(of_sender ? sending_ : receiving_, owner) &&
         !broken();
}

// 0: the lock is ours. `mine`: the word then. `in_handler`: this thread was in a call already, so
// its own id may well be its own.
int Pipe::wait_for_lock(OwnerWait& wait, std::atomic<std::uint32_t>& word, std::uint32_t mine,
                        bool in_handler) const {
  const std::uint32_t me = pipes::thread_id();
  const int saved_errno = errno;
  WaitBudget& of_thread = pipes::t_call_waits;
  CallWait in_call(call_waits_, CallWait::kMostNs, &of_thread);
  CallWait in_release(call_waits_, kReleaseInCallNs, &of_thread);
  const bool waits = !wait.gave_up();
  int err = -1;
  for (int round = 0; err < 0; ++round) {
    std::uint32_t owner = 0;
    for (int i = 0; i < kSpinsBeforeYield && err < 0; ++i) {
      owner = 0;
      // PAIR pipe.lock: as above
      if (words::replace(word, owner, mine)) {
        err = 0;
      } else if (thread_of(owner) == me && in_handler) {
        err = EDEADLK;
      }
      cpu_pause();
    }
    if (err >= 0) break;
    if (waits && round < kRoundsWithoutWait && yield_to(thread_of(owner), me, of_thread)) continue;
    // PAIR pipe.lock: as above, of one that has not let go
    if (owner_has_died(wait, owner) && words::replace(word, owner, mine)) {
      if (&word == &page_->ends[end_].sender.lock) finish_record();
      err = 0;
      break;
    }
    CallWait& this_wait = (owner & pipes::kReleases) != 0 ? in_release : in_call;
    if (broken()) {
      err = EPROTO;
    } else if (!waits || !this_wait.goes_on(monotonic_ns())) {
      wait.give_up();
      err = EBUSY;
    } else if (round < kYieldsBeforeNap) {
      sched_yield();
    } else {
      // A nap, and not one more yield, lets an owner run that has a lower priority.
      const timespec nap{0, kNapNs};
      sys::call(SYS_nanosleep, &nap, nullptr);
    }
  }
  if (err == 0 && wait.is_on()) wait.over(owner_waits_);
  errno = saved_errno;
  return err;
}

void Pipe::after_fork_in_child() {
  pipes::t_thread.id = pipes::t_thread.word = 0;
  // Its parent is of another pid namespace.
  if (sys::call(SYS_getppid) == 0) sys::forget_pid_namespace();
}

}  // namespace clan

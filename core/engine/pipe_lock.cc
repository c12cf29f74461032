#include "engine/pipe_lock.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cerrno>

#include "clan/clock.h"
#include "clan/cpu.h"

namespace clan {

constinit thread_local pipes::Thread pipes::t_thread;

namespace {

constexpr int kSpinsBeforeYield = 200;
constexpr int kYieldsBeforeNap = 64;
constexpr long kNapNs = 1'000'000;
/// With one whose owner is no thread that we see: it has died, or it counts in another pid namespace.
constexpr std::uint64_t kUnseenPatienceNs = 500'000'000;
/// What a nap counts for at most, so that the time in which we were stopped, as the owner then was, does not.
constexpr std::uint64_t kMostOfANapNs = 100'000'000;
constexpr std::uint32_t kMostThreadId = 1u << 22;  ///< the kernel's limit
constexpr std::uint64_t kReleasePatienceNs = 2'000'000;  ///< of a sender, that then has no room

}  // namespace

// 0: the lock is ours. `in_handler`: this thread was in a call already, so its own id may well be its own.
int Pipe::wait_for_lock(std::atomic<std::uint32_t>& word, std::uint32_t me, bool in_handler,
                        bool may_give_up) const {
  const int saved_errno = errno;
  std::uint64_t last = 0, waited = 0, unseen = 0;
  std::uint64_t most = 0;  // with a lock, whoever has it
  int err = 0;
  for (int round = 0; err == 0; ++round) {
    std::uint32_t owner = 0;
    for (int i = 0; i < kSpinsBeforeYield; ++i) {
      owner = 0;
      // PAIR pipe.lock: as above
      if (word.compare_exchange_strong(owner, me, std::memory_order_acquire, std::memory_order_relaxed)) {
        if (waited > 0) lock_waits_.spend(last, waited);
        errno = saved_errno;
        return 0;
      }
      if (owner == me && in_handler) {
        errno = saved_errno;
        return EDEADLK;
      }
      cpu_pause();
    }
    if (broken()) {
      err = EPROTO;
    } else if (round < kYieldsBeforeNap) {
      sched_yield();
    } else {
      // A nap, and not one more yield, lets an owner run that has a lower priority.
      const timespec nap{0, kNapNs};
      sys::call(SYS_nanosleep, &nap, nullptr);
      const std::uint64_t now = monotonic_ns();
      const std::uint64_t step = last == 0 ? 0 : std::min(now - last, kMostOfANapNs);
      if (last == 0) most = lock_waits_.left_ns(now);
      last = now;
      waited += step;
      const bool releases = (owner & pipes::kReleases) != 0;
      const std::uint32_t thread = owner & ~pipes::kReleases;
      const bool seen = thread <= kMostThreadId && owner != me && sys::exists(static_cast<pid_t>(thread));
      unseen = seen ? 0 : unseen + step;
      if (thread > kMostThreadId || unseen > (releases ? 4 : 1) * kUnseenPatienceNs) {
        broke("the owner of a lock has died");
        err = EPROTO;
      } else if (waited > most) {
        broke("a lock that is not let go");
        err = EPROTO;
      } else if (may_give_up && releases && seen && waited > kReleasePatienceNs) {
        err = EBUSY;
      }
    }
  }
  errno = saved_errno;
  return err;
}

void Pipe::after_fork_in_child() { pipes::t_thread.id = 0; }

}  // namespace clan

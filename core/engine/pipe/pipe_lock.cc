#include "engine/pipe/pipe_lock.h"

#include <sched.h>
#include <time.h>

#include <cerrno>

#include "clan/detail/cpu.h"

namespace clan {

constinit thread_local pipes::Thread pipes::t_thread;

namespace {

constexpr int kSpinsBeforeYield = 200;
constexpr int kRoundsBeforeLook = 2;  ///< that an owner which is off its processor gets
constexpr int kYieldsBeforeNap = 64;
constexpr long kNapNs = 1'000'000;

}  // namespace

// 0: the calling thread has the lock. `in_handler`: it was in a call already, so that a word which
// names it may be its own.
int Pipe::wait_for_lock(std::atomic<std::uint32_t>& word, bool in_handler) const {
  const std::uint32_t me = pipes::lock_word();
  const int saved_errno = errno;
  int err = -1;
  for (int round = 0; err < 0; ++round) {
    std::uint32_t owner = 0;
    for (int i = 0; i < kSpinsBeforeYield && err < 0; ++i) {
      owner = 0;
      // PAIR pipe.lock: sees the cursors the last owner left
      if (words::cas(word, owner, me)) {
        err = 0;
      } else if (owner == me && in_handler) {
        err = EDEADLK;
      }
      cpu_pause();
    }
    if (err >= 0) break;
    // A thread that has died may have had the caller's id.
    const bool died = owner == me || (round >= kRoundsBeforeLook && sys::has_ended(owner));
    // PAIR pipe.lock: sees what a process that was killed has left
    if (died && words::cas(word, owner, me)) {
      if (&word == &locks().sending) finish_record();
      err = 0;
    } else if (broken()) {
      err = EPROTO;
    } else if (round < kYieldsBeforeNap) {
      sched_yield();
    } else {
      // A nap, and not one more yield, lets an owner run that has a lower priority.
      const timespec nap{0, kNapNs};
      sys::call(SYS_nanosleep, &nap, nullptr);
    }
  }
  errno = saved_errno;
  return err;
}

void Pipe::after_fork_in_child() {
  pipes::t_thread.id = pipes::t_thread.word = 0;
  // Its parent is of another pid namespace.
  if (sys::call(SYS_getppid) == 0) sys::forget_pid_namespace();
}

}  // namespace clan

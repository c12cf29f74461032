#include "share/fork.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>

#include "af_clan/af_clan.h"
#include "attach/attach.h"
#include "clan/detail/clock.h"
#include "clan/detail/dekker.h"
#include "clan/face/pipe.h"
#include "clan/face/reasons.h"
#include "clan/face/socket_face.h"
#include "demote/demote.h"
#include "demote/resend.h"
#include "os/memory_owner.h"
#include "os/sandbox.h"
#include "os/signal_handlers.h"
#include "os/signals.h"
#include "os/spin_lock.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/remote.h"
#include "state/socket.h"
#include "state/socket_pool.h"
#include "state/withdraw.h"
#include "table/fd_table.h"
#include "table/open_file.h"
#include "table/pipe_count.h"
#include "table/slot_table.h"
#include "wait/epoll_set.h"
#include "wait/set_lock.h"
#include "wait/shared_sets.h"

namespace clan::preload {
namespace {

SpinLock forking;
std::uint64_t forks = 0;

// A child more has the open file, by its pipe or still to follow. `by`: 1 or, if there is no child
// after all, -1.
void count_child(Socket& s, int by) {
  OpenFileState& slot = s.open_file();
  // PAIR preload.held: a user more
  dekker::add(slot.held, by);
  if (dekker::load(s.not_to_follow) && s.pipe) {  // PAIR preload.to_follow
    add_holders(s.mine(), by);
  } else {
    // PAIR preload.to_follow: before the child is there
    dekker::add(slot.to_follow, by);
  }
}

// TryLockGuard for each socket, however many descriptors it has.
bool counted_in_this_fork(Socket& s) { return std::exchange(s.last_fork, forks) == forks; }

// Before fork: the child is counted.
void share_slots() {
  forbid_moves();
  lock_sockets();
  give_no_slots(true);
  unlock_sockets();
  ++forks;
  // Not one that has changed its user since it was executed, or whose root has no /proc.
  char self[16];
  struct {
    bool is_readable;
    std::uint64_t until_ns = monotonic_ns() + 1'000'000'000;
  } here;
  here.is_readable = sys::call(SYS_prctl, PR_GET_DUMPABLE) == 1 &&
                     sys::call(SYS_readlinkat, AT_FDCWD, "/proc/self", self, sizeof self) > 0;
  for_each_socket(
      [](int, Socket& s, void* argument) {
        if (counted_in_this_fork(s)) return;
        const auto& process = *static_cast<decltype(here)*>(argument);
        // A thread that moves it just now has not seen the fork; none begins to.
        bool mine = false;
        while (!(mine = s.moving.try_lock()) && monotonic_ns() < process.until_ns) sched_yield();
        s.share();
        // relaxed: published by fork
        if (!process.is_readable) s.open_file().alone.store(1, std::memory_order_relaxed);
        count_child(s, 1);
        if (mine) s.moving.unlock();
      },
      &here);
}

// In the child. True: its ids are of another pid namespace than its parent's, so that neither sees
// whether the other one's threads have died.
bool forked() {
  const std::uint32_t before = sys::pid_namespace();
  Pipe::after_fork_in_child();
  const bool other_namespace = sys::pid_namespace() != before;
  pipe_count_forked();
  for_each_socket(
      [](int, Socket& s, void*) {
        s.moving.unlock();
        s.charge = {};
        // An edge wakes only one of the processes that wait in one set.
        if (const int set = s.bell_set.take(); set >= 0) sys::close(set);
        s.in_bell_set.unlock();
        s.listing.unlock();
        s.remote.store(nullptr, std::memory_order_relaxed);  // the parent's, and back on TCP
        // The parent's offer is the parent's: a process that takes it up must find one there.
        const bool half_way = s.place == Socket::Place::kElsewhere;
        if (s.state_now() == Socket::State::kOffered && (!s.pipe || half_way)) {
          drop_offer(s);
          s.pipe = Pipe();
          s.become(Socket::State::kKernel);
        }
      },
      nullptr);
  return other_namespace;
}

}  // namespace

void before_fork() {
  leave_all_remote();
  enter_section();
  forking.lock();
  share_slots();
  lock_epoll();
  lock_resends();
  share_sets();
  lock_af_clan();
  lock_sockets();
  lock_handlers();
  remote_before_fork();
}

void after_fork(bool in_child) {
  KeepErrno keep;
  note_fork(in_child);
  if (in_child) {
    t_signals.thread = 0;
    (void)thread_id();  // not first when it has to ring
    note_process();
    sets_forked();
  }
  remote_after_fork(in_child);
  unlock_handlers();
  give_no_slots(false);
  unlock_sockets();
  unlock_af_clan();
  unlock_resends();
  unlock_epoll();
  forking.unlock();
  if (in_child) resends_forked();
  const bool other_namespace = in_child && forked();
  allow_moves();
  if (other_namespace) take_back_moved(reasons::Why::kForked);
  leave_section();
}

void before_identity_changes() {
  if (in_borrowed_memory()) return;
  for_each_socket(
      [](int fd, Socket& s, void*) {
        // relaxed: of this process
        if (s.inherited.load(std::memory_order_relaxed) && !s.shared()) move_only_alone(fd, s);
      },
      nullptr);
}

void fork_has_failed() {
  ++forks;
  for_each_socket(
      [](int, Socket& s, void*) {
        if (!counted_in_this_fork(s)) count_child(s, -1);
      },
      nullptr);
}

}  // namespace clan::preload

#include "share/fork.h"

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "af_clan/af_clan_table.h"
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
#include "state/face.h"
#include "state/remote.h"
#include "state/socket.h"
#include "state/socket_pool.h"
#include "state/withdraw.h"
#include "table/fd_table.h"
#include "table/open_file.h"
#include "table/pipe_count.h"
#include "table/slot_table.h"
#include "tcp/call_gate.h"
#include "wait/epoll_set.h"
#include "wait/set_lock.h"
#include "wait/shared_sets.h"

namespace clan::preload {
namespace {

SpinLock forking;
std::uint64_t forks = 0;

// Whether a thread may be moving it, which the child could not finish.
bool may_be_moving(const Socket& s) {
  return !s.shared() || (state_of(s.mine()) & socket_face::kAttached) == 0;
}

// Counts the child among the processes of each open file.
void share_slots() {
  lock_sockets();
  give_no_slots(true);
  unlock_sockets();
  ++forks;
  std::uint64_t until_ns = monotonic_ns() + 1'000'000'000;
  for_each_socket(
      [](int, Socket& s, void* until) {
        if (std::exchange(s.last_fork, forks) == forks) return;  // by another descriptor
        // PAIR preload.held: Dekker with enter_pipe(), before the wait at its gate
        dekker::add(s.open_file().held, OpenFileState::kProcess);
        bool mine = false;
        while (may_be_moving(s) && !(mine = s.moving.try_lock()) &&
               monotonic_ns() < *static_cast<std::uint64_t*>(until))
          sched_yield();
        if (!s.shared()) await_mover(s.open_file().receives);
        s.share();
        if (mine) s.moving.unlock();
      },
      &until_ns);
}

// In the child. True: it is in another pid namespace, so parent and child cannot see whether each
// other's threads have died.
bool forked() {
  const std::uint32_t before = sys::pid_namespace();
  Pipe::after_fork_in_child();
  const bool other_namespace = sys::pid_namespace() != before;
  pipe_count_forked();
  for_each_socket(
      [](int, Socket& s, void*) {
        s.moving.unlock();
        // Threads that the child does not have hold some. This loop holds one.
        // relaxed: the child has one thread
        s.lost_refs =
            s.refs.load(std::memory_order_relaxed) > s.fds.load(std::memory_order_relaxed) + 1;
        s.charge = {};
        // An edge wakes only one of the processes that wait in one set.
        for (BellSet* set : {&s.bell_set, &s.receive_set}) {
          if (const int kept = set->fd.take(); kept >= 0) sys::close(kept);
          set->in_use.unlock();
        }
        s.bell_sleepers.store(0, std::memory_order_relaxed);  // relaxed: the child has one thread
        s.ringing.unlock();
        s.listing.unlock();
        s.remote.store(nullptr, std::memory_order_relaxed);  // the parent's, and back on TCP
        // The offer is the parent's, which a process that takes it up must find there.
        const bool half_way = s.place == Socket::Place::kElsewhere;
        if (s.state_now() == Socket::State::kOffered && (!s.pipe || half_way)) {
          drop_offer(s);
          s.pipe = Pipe();
          s.Bells::reset();
          s.become(Socket::State::kTcp);
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
    (void)thread_id();  // before it is needed to ring
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
  if (other_namespace) take_back_moved(reasons::Why::kForked);
  leave_section();
}

void fork_has_failed() {
  for_each_socket(
      [](int, Socket& s, void*) {
        if (std::exchange(s.last_fork, 0) != forks) return;
        // PAIR preload.held: there is no child
        dekker::subtract(s.open_file().held, OpenFileState::kProcess);
      },
      nullptr);
}

}  // namespace clan::preload

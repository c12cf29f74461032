#include "share/passing.h"

#include <sched.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "clan/clock.h"
#include "clan/dekker.h"
#include "clan/reasons.h"
#include "migrate/attach.h"
#include "migrate/demote.h"
#include "migrate/demote_end.h"
#include "migrate/find_pipe.h"
#include "migrate/resend.h"
#include "migrate/trust.h"
#include "os/config.h"
#include "os/proc.h"
#include "os/real.h"
#include "os/rings.h"
#include "os/sandbox.h"
#include "os/signals.h"
#include "os/sock_diag.h"
#include "os/sys.h"
#include "os/tcp.h"
#include "share/fd_events.h"
#include "share/slot_table.h"
#include "state/face.h"
#include "state/fd_table.h"
#include "state/internal_fds.h"
#include "state/open_file.h"
#include "state/socket.h"
#include "state/withdraw.h"

namespace clan::preload {
namespace {

// A descriptor of the socket is about to be sent by SCM_RIGHTS. False: it has moved or stays on
// TCP; or the receiver could not find its slot, and then it has to stay.
bool put_on_its_way(int fd, Socket& s) {
  KeepErrno keep;
  const Undisturbed undisturbed;
  s.moving.lock();
  struct Unlock {
    Socket& s;
    ~Unlock() { s.moving.unlock(); }
  } unlock{s};
  const auto state = s.state_now();
  if (state == Socket::State::kKernel || state == Socket::State::kShared) return false;
  // What has been taken up already would be another process's to go on with.
  if (state == Socket::State::kOffered && (s.pipe || s.place == Socket::Place::kElsewhere))
    return false;
  Slot* slot = &s.open_file();
  constexpr std::uint64_t kMost = 1000;  // a process takes them that does not claim
  // PAIR preload.held: looked at again when it counts
  if (dekker::look(slot->pinned) != 0 || Slot::on_its_way(dekker::look(slot->held)) > kMost) {
    return false;
  }
  if (slot == &s.own_slot) {
    if (!has_findable_table()) return false;
    SocketIdentity id;
    SlotEntry* e = identify(fd, &id) ? new_entry() : nullptr;
    if (e == nullptr) return false;
    e->inode.store(id.inode, std::memory_order_relaxed);  // relaxed: published by the cookie
    e->pids.store(id.pids, std::memory_order_relaxed);
    e->client.store(s.client ? 1 : 0, std::memory_order_relaxed);
    if (!share_slot(s, &e->slot)) return false;
    // PAIR preload.slot_name: the entry is this socket's
    e->cookie.store(id.cookie, std::memory_order_release);
    slot = &e->slot;
  } else if (!is_passable(slot)) {
    return false;
  }
  if (state == Socket::State::kOffered) {  // a process that goes on with it offers again
    withdraw_offer(s);
    s.become(Socket::State::kTcp);
  }
  // PAIR preload.held: Dekker with enter_pipe(), before the looks at its gate and its pipe
  dekker::add(slot->held, Slot::kOnItsWay);
  // Another process, which moves it just now, has looked before.
  constexpr std::uint64_t kPatienceNs = 1'000'000'000;
  const std::uint64_t end = monotonic_ns() + kPatienceNs;
  const auto is_closed = [&] {
    // PAIR preload.gate: sees what was done behind it
    return (slot->receives.load(std::memory_order_seq_cst) & Slot::kClosed) != 0;
  };
  while (is_closed() && monotonic_ns() < end) sched_yield();
  // PAIR preload.moved: or it has moved
  if (slot->pipe_fd.load(std::memory_order_seq_cst) < 0) return true;
  // PAIR preload.held: it is not sent
  dekker::subtract(slot->held, Slot::kOnItsWay);
  return false;
}

// It was not sent.
void take_off_its_way(Socket& s) {
  Slot* slot = &s.open_file();
  // PAIR preload.held: nobody is going to claim it
  if (dekker::look(slot->pinned) == 0 && is_passable(slot)) {
    dekker::subtract(slot->held, Slot::kOnItsWay);
  }
}

// Such a descriptor has been received. False: nobody knows of it.
bool claim_passed(int fd, Socket& s, int through, bool peeked) {
  SocketIdentity id;
  SlotEntry* e = identify(fd, &id) ? find_entry(through, id) : nullptr;
  if (e == nullptr) return false;
  // PAIR preload.held: which life it is
  std::uint64_t held = dekker::look(e->slot.held);
  do {
    // PAIR preload.slot_name: the cookie of that life, or of a later one
    if (Slot::on_its_way(held) == 0 || e->cookie.load(std::memory_order_seq_cst) != id.cookie)
      return false;
    // another copy of it will be received, and nobody knows what is done with this one
    if (peeked) {
      // PAIR preload.held: before it is claimed, if ever
      dekker::announce(e->slot.pinned, 1);
      return false;
    }
    // PAIR preload.to_follow: before nobody is on its way any more
    dekker::add(e->slot.to_follow, 1);
    const std::uint64_t arrived = held - Slot::kOnItsWay + 1;  // PAIR preload.held: in its life
    if (dekker::replace(e->slot.held, held, arrived)) break;
    // PAIR preload.to_follow: it was not this one
    dekker::subtract(e->slot.to_follow, 1);
  } while (true);
  s.client = e->client.load(std::memory_order_relaxed) != 0;  // relaxed: behind the cookie
  s.share();
  // PAIR preload.slot: publishes its counters
  s.slot.store(&e->slot, std::memory_order_release);
  return true;
}

// The receiver of what is sent through this AF_UNIX socket knows of pipes. The kernel says which
// process is at the other end of a connection; of a pair it only says which one made it.
bool receiver_knows(int through) {
  sockaddr_un name{};
  socklen_t mine = sizeof name, theirs = sizeof name;
  if (sys::call(SYS_getsockname, through, &name, &mine) != 0) return false;
  if (sys::call(SYS_getpeername, through, &name, &theirs) != 0) return false;
  ucred peer{};
  socklen_t size = sizeof peer;
  if (std::max(mine, theirs) <= sizeof(sa_family_t)) return false;
  return sys::getsockopt(through, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && proc_is_ours() &&
         loads_library(peer.pid) && may_as_much(peer.pid);
}

// It has moved, so this process has to be in the pipe before it uses it: not at once if another
// thread forks just now.
void enter_for_good(int fd, Socket& s, const Route& route) {
  constexpr std::uint64_t kForkNs = 10'000'000'000;
  const std::uint64_t end = monotonic_ns() + kForkNs;
  while (!enter_pipe(fd, s, route, true)) {
    if (monotonic_ns() > end) return reset_connection(fd);
    sched_yield();
  }
}

}  // namespace

void adopt_passed(int fd, int through, bool peeked, std::span<const int> pipes) {
  KeepErrno keep;
  gone(fd);
  const bool takes_part = !config().disabled && !rings_alive();
  probe(fd, true);
  Held s = hold(fd);
  Route route;
  if (!s || !route_of(fd, &route)) return;
  const bool may_move = takes_part && fd > STDERR_FILENO && permits_moving();
  if (may_move && claim_passed(fd, *s, through, peeked)) return;
  int end = 0;
  const std::uint64_t cookie = cookie_of(fd);
  const bool may_have_moved = same_host(*s, route) || config().has_directory();
  int memfd = find_among(pipes, cookie, &end);
  if (memfd < 0 && may_have_moved) memfd = find_pipe(cookie, &end);
  auto pipe = open_pipe_of(memfd, end, cookie);
  if (!pipe) return stay(fd, *s, reasons::Why::kPassed);
  s->pipe = std::move(*pipe);
  enter_for_good(fd, *s, route);
  if (!takes_part || fd <= STDERR_FILENO) leave_pipe(fd, true, reasons::Why::kPassed);
}

int take_from(int pidfd, int target, unsigned flags) {
  const int fd = with_room(
      [&] { return static_cast<int>(real().syscall(SYS_pidfd_getfd, pidfd, target, flags)); });
  if (fd < 0) return fd;
  const KeepErrno keep;
  if (known(target) && cookie_of(target) == cookie_of(fd)) return same(target, fd), fd;
  constexpr int kNobody = -1;
  adopt_passed(fd, kNobody, false);
  if (const Held s = hold(fd); s && s->shared()) {
    add_holders(s->mine(), 1);
    leave_pipe(fd, true, reasons::Why::kPassed);
  }
  return fd;
}

void pass_on(int fd, int through) {
  Held s = hold_current(fd);
  if (!s) return;
  leave_remote(fd, *s, reasons::Why::kPassed);
  s->share();
  if (!s->shared()) {
    if (put_on_its_way(fd, *s)) return;
    catch_up(fd, *s);
  }
  // The receiver would not know of what is still sent again, here or by another process.
  if (s->shared() && (s->pipe.memfd() < 0 || is_sent_again(*s) || !receiver_knows(through))) {
    leave_pipe(fd, true, reasons::Why::kPassed);
  }
  s->followed.store(true, std::memory_order_relaxed);
  leave_to_others(fd, *s);
  if (s->shared()) {
    add_holders(s->mine(), 1);  // the receiver, before we may close ours
  } else {
    never_move(fd, *s, reasons::Why::kPassed);
  }
}

void not_sent(int fd) {
  if (Held s = hold(fd)) {
    s->shared() ? (void)add_holders(s->mine(), -1) : take_off_its_way(*s);
  }
}

}  // namespace clan::preload

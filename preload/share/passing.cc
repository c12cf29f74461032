#include "share/passing.h"

#include <sys/un.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

#include "attach/attach.h"
#include "attach/find_pipe.h"
#include "attach/peer_auth.h"
#include "clan/detail/dekker.h"
#include "clan/detail/log.h"
#include "clan/face/reasons.h"
#include "clan/face/socket_face.h"
#include "demote/demote.h"
#include "demote/resend.h"
#include "kernel/proc.h"
#include "kernel/sock_diag.h"
#include "kernel/tcp.h"
#include "os/config.h"
#include "os/io_uring_count.h"
#include "os/real.h"
#include "os/sandbox.h"
#include "os/signals.h"
#include "os/sys.h"
#include "share/fd_events.h"
#include "state/face.h"
#include "state/socket.h"
#include "state/socket_pool.h"
#include "state/withdraw.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"
#include "table/open_file.h"
#include "table/slot_table.h"
#include "tcp/call_gate.h"

namespace clan::preload {
namespace {

// A descriptor of the socket is about to be sent by SCM_RIGHTS. False: it has moved or stays on
// TCP; or the receiver could not find its slot, and then it has to stay.
bool put_on_its_way(int fd, Socket& s) {
  KeepErrno keep;
  const DeferSignals undisturbed;
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
  OpenFileState* slot = &s.open_file();
  constexpr std::uint64_t kMost = 1000;  // a process takes them that does not claim
  // PAIR preload.held: checked again when it counts
  if (dekker::load(slot->pinned) != 0 ||
      OpenFileState::on_its_way(dekker::load(slot->held)) > kMost) {
    return false;
  }
  SocketIdentity id;
  if (!is_in_a_table(*slot) || !identify(fd, &id)) return false;
  slot->inode.store(id.inode, std::memory_order_relaxed);  // relaxed: published by the cookie
  slot->client.store(s.client ? 1 : 0, std::memory_order_relaxed);
  // PAIR preload.slot_name: the slot is this socket's
  slot->cookie.store(id.cookie, std::memory_order_release);
  if (state == Socket::State::kOffered) {  // a process that goes on with it offers again
    withdraw_offer(s);
    s.become(Socket::State::kTcp);
  }
  // PAIR preload.held: Dekker with enter_pipe(), before the checks of its gate and its pipe
  dekker::add(slot->held, OpenFileState::kOnItsWay);
  // Another process, which moves it just now, has looked before.
  await_mover(slot->receives);
  // PAIR preload.moved: or it has moved
  if (slot->pipe_fd.load(std::memory_order_seq_cst) < 0) return true;
  // PAIR preload.held: it is not sent
  dekker::subtract(slot->held, OpenFileState::kOnItsWay);
  return false;
}

// It was not sent.
void take_off_its_way(Socket& s) {
  OpenFileState* slot = &s.open_file();
  // PAIR preload.held: nobody is going to claim it
  if (dekker::load(slot->pinned) == 0) dekker::subtract(slot->held, OpenFileState::kOnItsWay);
}

// Counts a descriptor that was on its way to this process. False: there is none.
bool arrive(OpenFileState& slot, std::uint64_t* held) {
  while (OpenFileState::on_its_way(*held) != 0) {
    // PAIR preload.to_follow: before nobody is on its way any more
    dekker::add(slot.to_follow, 1);
    const std::uint64_t arrived =
        *held - OpenFileState::kOnItsWay + 1;  // PAIR preload.held: in its life
    if (dekker::cas(slot.held, *held, arrived)) return true;
    // PAIR preload.to_follow: it was not this one
    dekker::subtract(slot.to_follow, 1);
  }
  return false;
}

bool claim(OpenFileState& slot, const SocketIdentity& id, bool peeked) {
  // PAIR preload.held: which life it is
  std::uint64_t held = dekker::load(slot.held);
  // PAIR preload.slot_name: the cookie of that life, or of a later one
  if (OpenFileState::on_its_way(held) == 0 ||
      slot.cookie.load(std::memory_order_seq_cst) != id.cookie)
    return false;
  // PAIR preload.moved: it has moved since it was named
  if (slot.pipe.load(std::memory_order_acquire) != 0) return false;
  if (!peeked) return arrive(slot, &held);
  // Another copy of it will be received, and nobody knows what is done with this one.
  // PAIR preload.held: before it is claimed, if ever
  dekker::announce(slot.pinned, 1);
  return false;
}

// A descriptor that was passed before its connection moved has been received. False: nobody knows
// of it.
bool claim_passed(int fd, Socket& s, int through, bool peeked) {
  SocketIdentity id;
  OpenFileState* slot = identify(fd, &id) ? find_slot(through, id) : nullptr;
  if (slot == nullptr || !claim(*slot, id, peeked)) return drop_slot(slot), false;
  const DeferSignals undisturbed;
  lock_between_forks(s);
  s.client = slot->client.load(std::memory_order_relaxed) != 0;  // relaxed: behind the cookie
  s.share();
  exchange_slot(s, *slot);
  s.moving.unlock();
  return true;
}

// A descriptor of a connection in `pipe`. False: its processes cannot be found.
bool follow_passed(int fd, Socket& s, Pipe pipe, const Route& route, int through, bool peeked,
                   std::span<const int> memfds) {
  OpenFileState* const slot =
      find_slot_of_pipe(process_behind(through), pipe.inode(), pipe.end(), memfds);
  if (slot == nullptr) return false;
  // PAIR preload.held: which life it is
  std::uint64_t held = dekker::load(slot->held);
  const bool arrived = !peeked && arrive(*slot, &held);
  if (!arrived) dekker::add(slot->held, 1);  // PAIR preload.held: a user more
  join_pipe(fd, s, *slot, std::move(pipe), route, arrived);
  return true;
}

// The receiver of what is sent through this AF_UNIX socket knows of pipes. The kernel says which
// process is at the other end of a connection; of a pair it only says which one made it.
bool receiver_knows(int through) {
  sockaddr_un name{};
  socklen_t mine = sizeof name, theirs = sizeof name;
  if (sys::call(SYS_getsockname, through, &name, &mine) != 0) return false;
  if (sys::call(SYS_getpeername, through, &name, &theirs) != 0) return false;
  const pid_t peer = process_behind(through);
  if (std::max(mine, theirs) <= sizeof(sa_family_t) || peer == 0) return false;
  char pid[16];
  std::snprintf(pid, sizeof pid, "%d", static_cast<int>(peer));
  return sys::proc_is_ours() && counts_as_we_do(pid) && loads_library(peer) && may_as_much(peer);
}

}  // namespace

void adopt_passed(int fd, int through, bool peeked, std::span<const int> pipes) {
  KeepErrno keep;
  gone(fd);
  const bool takes_part = !config().disabled && !rings_alive();
  probe(fd, true);
  SocketRef s = acquire(fd);
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
  const bool is_back = (state_of(pipe->my_face()) & socket_face::kGone) != 0;
  if (!follow_passed(fd, *s, std::move(*pipe), route, through, peeked, pipes)) {
    if (is_back) return stay(fd, *s, reasons::Why::kPassed);  // nobody else has it any more
    log_line(
        LogLevel::kError,
        "a descriptor of a connection in shared memory was passed to this process, which finds "
        "none of the processes that have it (another pid namespace?); it is reset. "
        "CLAN_DISABLE=1 avoids that for this program");
    return reset_connection(fd);
  }
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
  if (const SocketRef s = acquire(fd); s && s->shared()) {
    add_holders(s->mine(), 1);
    leave_pipe(fd, true, reasons::Why::kPassed);
  }
  return fd;
}

void pass_on(int fd, int through) {
  SocketRef s = hold_current(fd);
  if (!s) return;
  leave_remote(fd, *s, reasons::Why::kPassed);
  s->share();
  if (!s->shared()) {
    if (put_on_its_way(fd, *s)) return;
    catch_up(fd, *s);
  }
  // The receiver would not know of what is still sent again, here or by another process.
  if (s->shared() && (s->pipe.memfd() < 0 || is_sent_again(*s) || !is_findable(s->open_file()) ||
                      !receiver_knows(through))) {
    leave_pipe(fd, true, reasons::Why::kPassed);
  }
  s->followed.store(true, std::memory_order_relaxed);
  leave_to_others(fd, *s);
  if (s->shared()) {
    add_holders(s->mine(), 1);  // the receiver, before we may close ours
    dekker::add(s->open_file().held, OpenFileState::kOnItsWay);  // PAIR preload.held: the same
  } else {
    never_move(fd, *s, reasons::Why::kPassed);
  }
}

void not_sent(int fd) {
  if (SocketRef s = acquire(fd)) {
    if (s->shared()) add_holders(s->mine(), -1);
    take_off_its_way(*s);
  }
}

}  // namespace clan::preload

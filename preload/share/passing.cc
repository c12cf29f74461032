#include "share/passing.h"

#include <netinet/in.h>
#include <sched.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "clan/detail/dekker.h"
#include "clan/face/reasons.h"
#include "demote/demote.h"
#include "kernel/proc.h"
#include "kernel/sock_diag.h"
#include "kernel/tcp.h"
#include "os/real.h"
#include "os/signals.h"
#include "os/sys.h"
#include "share/fd_events.h"
#include "state/socket.h"
#include "state/socket_pool.h"
#include "state/withdraw.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"
#include "table/open_file.h"
#include "table/slot_table.h"

namespace clan::preload {
namespace {

// Counts a descriptor that is about to be sent. False: it has moved or stays on TCP, or has to, as
// the receiver could not find its slot.
bool put_on_its_way(int fd, Socket& s) {
  const KeepErrno keep;
  const DeferSignals undisturbed;
  const std::lock_guard locked(s.moving);
  const auto state = s.state_now();
  // An offer that has been taken up cannot go on in another process.
  const bool is_taken_up = s.pipe || s.place == Socket::Place::kElsewhere;
  const bool is_offered = state == Socket::State::kOffered && !is_taken_up;
  if (state != Socket::State::kTcp && !is_offered) return false;
  OpenFileState& slot = s.open_file();
  constexpr std::uint64_t kMost = 500;  // more: the receiver does not claim them
  // PAIR preload.held: checked again when counted
  if (dekker::load(slot.pinned) != 0 || OpenFileState::on_its_way(dekker::load(slot.held)) > kMost)
    return false;
  slot.client.store(s.client ? 1 : 0, std::memory_order_relaxed);  // relaxed: published by the name
  if (!is_in_a_table(slot) || !name_slot(fd, slot)) return false;
  if (is_offered) {  // the process that moves it will offer again
    withdraw_offer(s);
    s.become(Socket::State::kTcp);
  }
  // PAIR preload.held: Dekker with enter_pipe(), whose thread has `moving`
  dekker::add(slot.held, OpenFileState::kOnItsWay);
  return true;
}

// Counts a descriptor as arrived. False: none is on its way.
bool arrive(OpenFileState& slot, std::uint64_t held) {
  const std::uint64_t life = held >> OpenFileState::kLife;
  while (OpenFileState::on_its_way(held) != 0 && held >> OpenFileState::kLife == life) {
    const std::uint64_t arrived = held - OpenFileState::kOnItsWay + OpenFileState::kProcess;
    if (dekker::cas(slot.held, held, arrived)) return true;  // PAIR preload.held: one process more
  }
  return false;
}

bool claim(OpenFileState& slot, const SocketIdentity& id, bool peeked) {
  // PAIR preload.held: which life it is
  const std::uint64_t held = dekker::load(slot.held);
  // PAIR preload.slot_name: the cookie of that life or a later one
  if (OpenFileState::on_its_way(held) == 0 ||
      slot.cookie.load(std::memory_order_seq_cst) != id.cookie)
    return false;
  if (!peeked) return arrive(slot, held);
  slot.pin();  // another copy will be received, and the use of this one is unknown
  return false;
}

// Claims a descriptor that has been received. False: it stays on TCP.
bool claim_passed(int fd, Socket& s, int through, bool peeked) {
  SocketIdentity id;
  OpenFileState* slot = identify(fd, &id) ? find_slot(id, process_behind(through)) : nullptr;
  if (slot == nullptr || !claim(*slot, id, peeked)) return drop_slot(slot), false;
  const DeferSignals undisturbed;
  s.client = slot->client.load(std::memory_order_relaxed) != 0;  // relaxed: behind the cookie
  s.share();
  for (;; sched_yield()) {  // while the process forks
    const std::lock_guard locked(s.moving);
    if (exchange_slot(s, *slot)) return true;
  }
}

// Whether the socket behind another process's descriptor has moved there.
bool has_moved_elsewhere(int fd, int pidfd) {
  SocketIdentity id;
  if (sys::socket_option(fd, SO_PROTOCOL) != IPPROTO_TCP || !identify(fd, &id)) return false;
  char path[40], text[512] = "";
  std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
  (void)sys::read_file(path, text, sizeof text);
  const char* const pid = std::strstr(text, "\nPid:");
  OpenFileState* const slot = find_slot(id, pid != nullptr ? std::atoi(pid + 5) : 0);
  // relaxed: behind the name
  const bool has = slot != nullptr && slot->moved.load(std::memory_order_relaxed) != 0;
  drop_slot(slot);
  return has;
}

}  // namespace

void adopt_passed(const msghdr& message, int through, bool peeked) {
  for_each_passed(message, [=](int fd) { adopt_passed(fd, through, peeked); });
}

void adopt_passed(int fd, int through, bool peeked) {
  const KeepErrno keep;
  gone(fd);
  probe(fd);
  const SocketRef s = acquire(fd);
  Route route;
  if (!s || s->stays_on_tcp()) return;
  if (!route_of(fd, &route)) return s->become(Socket::State::kKernel);  // not connected
  if (!claim_passed(fd, *s, through, peeked)) stay(fd, *s, reasons::Why::kPassed);
}

int take_from(int pidfd, int target, unsigned flags) {
  int fd = with_room(
      [&] { return static_cast<int>(real().syscall(SYS_pidfd_getfd, pidfd, target, flags)); });
  if (fd < 0) return fd;
  {
    const KeepErrno keep;
    if (known(target) && cookie_of(target) == cookie_of(fd)) return same(target, fd), fd;
    gone(fd);
    if (has_moved_elsewhere(fd, pidfd)) sys::close(std::exchange(fd, -1));
  }
  if (fd < 0) errno = EPERM;
  return fd;
}

void pass_on(int fd) {
  const SocketRef s = acquire(fd);
  if (!s) return;
  s->share();
  if (!put_on_its_way(fd, *s)) never_move(fd, *s, reasons::Why::kPassed);
}

void not_sent(int fd) {
  const SocketRef s = acquire(fd);
  // PAIR preload.held: not claimed by any process. A pinned one has not been counted.
  if (s && dekker::load(s->open_file().pinned) == 0)
    dekker::subtract(s->open_file().held, OpenFileState::kOnItsWay);
}

}  // namespace clan::preload

#include "stream/poll_tcp.h"

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "demote/demote_on_request.h"
#include "demote/demote_steps.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/hooks.h"
#include "state/socket.h"
#include "stream/close.h"
#include "stream/ending.h"
#include "stream/glance.h"
#include "tcp/aborted.h"
#include "tcp/doorbell.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

bool others_want_room(const Socket& s) {
  // order: as Sleeper counts them, before its look
  return s.room_sleepers.load(std::memory_order_seq_cst) > 0 ||
         watcher_sleeps(s, POLLOUT | POLLWRNORM);
}

// Something that a sleeper would want to know of.
bool worth_waking(const Socket& s) {
  const PipeFront front = s.pipe.front();
  // After kLeave, TCP's own bytes wake everybody.
  if (front != PipeFront::kNothing && front != PipeFront::kLeave &&
      (front != PipeFront::kBytes || enough_bytes(s))) {
    return true;
  }
  return others_want_room(s) && s.pipe.writable();
}

// A doorbell wakes all that sleep in the kernel on this socket, but only those that get the
// processor before it is taken away. So when others may sleep, it stays as long as it has something
// to tell:
//
//   1 count the doorbells 2 ask for another, in the others' name 3 look into the pipe 4 drop those
//     of 1
//
// Whatever those of 1 announced was in the pipe at 3. What came later rings again, because of 2.
bool drop_doorbells(int fd, Socket& s) {
  // order: 1 comes before 2 and 3
  const std::uint64_t rung = doorbells_of(s.theirs(), std::memory_order_seq_cst);
  if (!doorbells_waiting(s)) return true;
  // Not those rung since: a thread may have gone to sleep meanwhile, and they are for it.
  if (!others_sleep(s)) return drain_doorbells(fd, s, rung), true;
  s.pipe.keep_wanted(s.inherited.load(std::memory_order_relaxed) || others_want_room(s));
  if (worth_waking(s)) return false;
  drain_doorbells(fd, s, rung);
  return true;
}

// What the kernel has woken a thread for is a doorbell.
bool only_doorbells(const Socket& s) {
  return s.has_drained() && !s.kernel_end && !s.kernel_error && !s.reads_kernel() &&
         (state_of(s.theirs()) & socket_face::kLeaving) == 0;
}

}  // namespace

bool others_sleep(const Socket& s) {
  // order: as Sleeper counts them, before its look
  return s.inherited.load(std::memory_order_relaxed) ||
         s.data_sleepers.load(std::memory_order_seq_cst) > 0 ||
         s.room_sleepers.load(std::memory_order_seq_cst) > 0 || watcher_sleeps(s, 0);
}

bool enough_bytes(const Socket& s, std::size_t of_tcp) {
  const auto low_water = static_cast<std::uint64_t>(s.low_water.load(std::memory_order_relaxed));
  return low_water <= 1 || of_tcp + s.pipe.readable_bytes() >= low_water || has_ended(s) ||
         !s.pipe.peer_has_room();
}

bool poll_tcp_socket(int fd, Socket& s) {
  KeepErrno keep;
  const DeferSignals undisturbed;
  if (is_to_go(s)) (void)answer_leaving(fd, s);
  if (owes_end(s)) (void)tell_end(fd, s);
  return look_at_tcp(fd, s);
}

bool look_at_tcp(int fd, Socket& s) {
  KeepErrno keep;
  const DeferSignals undisturbed;
  if (s.reads_kernel()) return true;
  if (!s.has_drained()) {
    const Draining draining(fd, s);
    std::size_t certain = 0;
    if (left_in_tcp(fd, s, &certain) != 0) {
      look_for_end(fd, s);
      return true;
    }
  }
  const bool dropped = drop_doorbells(fd, s);
  look_for_end(fd, s);
  return dropped;
}

bool take_doorbells(int fd, Socket& s) {
  if (!only_doorbells(s)) return poll_tcp_socket(fd, s);
  KeepErrno keep;
  const DeferSignals undisturbed;
  if (!doorbells_waiting(s) && reset_for_strays(fd, s)) return true;
  return drop_doorbells(fd, s);
}

}  // namespace clan::preload

#include "stream/poll_tcp.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "clan/face/pipe.h"
#include "demote/demote_on_request.h"
#include "demote/demote_steps.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/remote.h"
#include "state/socket.h"
#include "stream/close.h"
#include "stream/ending.h"
#include "stream/glance.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

// Something that a sleeper would want to know of.
bool worth_waking(const Socket& s) {
  const PipeFront front = s.pipe.front();
  // After kLeave, TCP's own bytes wake everybody.
  return front != PipeFront::kNothing && front != PipeFront::kLeave &&
         (front != PipeFront::kBytes || enough_bytes(s));
}

// The bell of a connection to another host wakes all threads that sleep on the socket, but only
// those that get the processor before it is taken away. So it stays as long as it has something to
// tell:
//
//   1 count the rings 2 ask for another, in the others' name 3 look into the pipe 4 take those of 1
//
// Whatever those of 1 announced was in the pipe at 3. What came later rings again, because of 2.
bool take_carriers_bell(int fd, Socket& s) {
  if (!has_remote_bells(s)) return true;
  const std::uint64_t rung = s.remote_rings.load(std::memory_order_seq_cst);  // order: 1
  if (!has_carrier_rung(s)) return true;
  s.pipe.keep_wanted(true);
  if (worth_waking(s)) return false;
  (void)take_remote_bells(fd, s, rung);
  return true;
}

}  // namespace

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
    const Draining draining(s);
    std::size_t certain = 0;
    if (left_in_tcp(fd, s, &certain) != 0) {
      look_for_end(fd, s);
      return true;
    }
  }
  const bool taken = take_carriers_bell(fd, s);
  look_for_end(fd, s);
  return taken;
}

}  // namespace clan::preload

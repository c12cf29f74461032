#include "stream/poll_tcp.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "clan/face/pipe.h"
#include "demote/demote_on_request.h"
#include "demote/demote_steps.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/socket.h"
#include "stream/close.h"
#include "stream/ending.h"
#include "stream/glance.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {

bool enough_bytes(const Socket& s, std::size_t of_tcp) {
  const auto low_water = static_cast<std::uint64_t>(s.low_water.load(std::memory_order_relaxed));
  return low_water <= 1 || of_tcp + s.pipe.readable_bytes() >= low_water || has_ended(s) ||
         !s.pipe.peer_has_room();
}

void poll_tcp_socket(int fd, Socket& s) {
  KeepErrno keep;
  const DeferSignals undisturbed;
  if (is_to_go(s)) (void)answer_leaving(fd, s);
  if (owes_end(s)) (void)tell_end(fd, s);
  look_at_tcp(fd, s);
}

void look_at_tcp(int fd, Socket& s) {
  KeepErrno keep;
  const DeferSignals undisturbed;
  if (s.reads_kernel()) return;
  if (!s.has_drained()) {
    const Draining draining(s);
    std::size_t certain = 0;
    (void)left_in_tcp(fd, s, &certain);
  }
  look_for_end(fd, s);
}

}  // namespace clan::preload

// Ringing the other end awake.
#pragma once

#include <optional>

#include "state/socket.h"
#include "stream/doorbell.h"

namespace clan::preload {

void ring_doorbell(int fd, Socket& s);

/// Around what publishes something in the pipe. Where several processes hold this end, the kernel
/// tells nobody when one of them is killed, and it may be killed between publishing and ringing. So
/// it says that it rings (kBells), then rings whoever sleeps already, and then publishes; whoever
/// goes to sleep meanwhile sees that, see nap_beside_ringer(). Nothing where an end is held by one
/// process: its death ends the connection, and that wakes everybody.
class Announced {
 public:
  Announced(int fd, Socket& s) {
    if (s.inherited.load(std::memory_order_relaxed)) announce(fd, s);  // relaxed: of this process
  }

 private:
  void announce(int fd, Socket& s);
  std::optional<Ringing> ringing_;
};

/// False, with EBADF: another thread has closed the descriptor, and the number may be another
/// file's by now.
bool still_names(int fd, const Socket& s);

}  // namespace clan::preload

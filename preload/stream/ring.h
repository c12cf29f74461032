// Ringing the other end awake.
#pragma once

#include <optional>

#include "clan/socket_face.h"
#include "state/open_file.h"
#include "state/socket.h"
#include "stream/doorbell.h"

namespace clan::preload {

void ring_doorbell(int fd, Socket& s);

/// Several processes hold this end, as far as one knows that may not be the only one.
inline bool others_hold(const Socket& s) {
  // relaxed: counts by themselves; one that comes to hold it while a call is under way does not
  // count
  return s.mine().words[socket_face::kHolders].load(std::memory_order_relaxed) > 1 ||
         s.open_file().to_follow.load(std::memory_order_relaxed) > 0;
}

/// Around what publishes something in the pipe. Where several processes hold this end, the kernel
/// tells nobody when one of them is killed, and it may be killed between publishing and ringing. So
/// it says that it rings (kBells), then rings those that sleep already, and then publishes; one
/// that goes to sleep meanwhile sees that, see nap_beside_ringer(). Nothing where an end is held by
/// one process: its death ends the connection, and that wakes everybody.
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

// Waiting of an end that has to be back on TCP before it can go on: a program that knows TCP alone
// gets its socket.
#pragma once

#include <cstdint>

#include "state/socket.h"

namespace clan::preload {

/// Threads that have a lock of an end, send a doorbell, or have closed its counters of calls, and
/// so keep the end from going back.
enum class Users {
  kNobody,
  kSharers,        ///< threads of this process, or of others that have the socket
  kStoppedSharer,  ///< one of them is shown as stopped
  kOthers,  ///< threads that have no business there for longer than a moment; or the other end lies
};
Users users_of_end(int fd, const Socket& s);

/// How long that end waits, in all: for a process that shares it and is stopped, as long as it is;
/// for the other end's program, and for processes that share this end, ten seconds; 0.2 s while the
/// other end keeps it from going on.
class LastWait {
 public:
  LastWait(int fd, const Socket& s);
  /// A nap. False: it has taken too long. `peer_blocks`: the other end keeps it from going on.
  bool nap(bool peer_blocks);

 private:
  int fd_;
  const Socket& s_;
  std::uint64_t last_ns_, asked_ns_ = 0, waited_ns_ = 0, blocked_ns_ = 0;
  Users users_ = Users::kNobody;
};

}  // namespace clan::preload

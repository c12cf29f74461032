// Waiting for connections that are carried to another host (far/): a thread that spins fetches
// packets, one that goes to sleep leaves that to the carrier's thread.
#pragma once

#include "clan/wait.h"
#include "state/socket.h"

namespace clan::preload {

// relaxed: written before the pipe is known
inline bool is_carried(const Socket& s) { return s.far.load(std::memory_order_relaxed) != nullptr; }

/// Between two looks at a pipe. True: something has come for a connection, perhaps not this one.
bool fetch_packets();
inline bool fetch_for(const Socket& s) { return is_carried(s) && fetch_packets(); }

/// Before a sleep in the kernel.
void leave_packets();
inline void leave_packets_of(const Socket& s) {
  if (is_carried(s)) [[unlikely]]
    leave_packets();
}

/// Of the other end: what is known of a process of this host. The carrier, which writes in its
/// place, may have been this very thread.
inline Awaited awaited_of(const Socket& s) {
  if (is_carried(s)) return {};
  return {s.pipe.peer_cpu(), s.rang.load(std::memory_order_relaxed)};
}

}  // namespace clan::preload

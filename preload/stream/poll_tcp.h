// Checks of what TCP has: bytes from before the switch, and its end.
#pragma once

#include <cstddef>

#include "state/socket.h"

namespace clan::preload {

/// After the kernel called the descriptor ready: notices the end.
void poll_tcp_socket(int fd, Socket& s);
/// The same without what is_due(), which may wait (stream/readiness.h).
void look_at_tcp(int fd, Socket& s);

/// Bytes at the front of the pipe, and those of TCP before them, are as many as SO_RCVLOWAT asks
/// for, or as there will be, or as many as there may be: the kernel, too, wakes a reader for a full
/// window.
bool enough_bytes(const Socket& s, std::size_t of_tcp = 0);

}  // namespace clan::preload

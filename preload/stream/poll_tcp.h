// Checks of what TCP has: doorbells, and its end.
#pragma once

#include <cstddef>

#include "state/socket.h"

namespace clan::preload {

/// After the kernel called the descriptor ready: drops doorbells, notices the end. False: doorbells
/// stay where they are, because somebody else sleeps for them.
bool poll_tcp_socket(int fd, Socket& s);
/// The same without what is_due(), which may wait (stream/readiness.h).
bool look_at_tcp(int fd, Socket& s);

/// The same where the kernel has reported bytes and nothing else: an end is behind them, and not
/// looked for.
bool take_doorbells(int fd, Socket& s);

/// Others than the calling thread may be asleep on the socket.
bool others_sleep(const Socket& s);

/// Bytes at the front of the pipe, and those of TCP before them, are as many as SO_RCVLOWAT asks
/// for, or as there will be, or as many as there may be: the kernel, too, wakes a reader for a full
/// window.
bool enough_bytes(const Socket& s, std::size_t of_tcp = 0);

}  // namespace clan::preload

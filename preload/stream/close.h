// How this end of a moved socket ends.
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// Called before the process closes its last descriptor. `others`: other processes have it open.
void shared_close(int fd, Socket& s, bool others);

/// Notes for the peer whether this close, or the process's end, is a reset (SO_LINGER); returns
/// that.
bool say_linger(int fd, Socket& s);

/// Does shutdown(), and like the kernel returns at once. If other processes keep it from announcing
/// the end, it sets socket_face::kEnding, and each process of this end finishes at its next check
/// of the socket. Meanwhile sends fail with EPIPE, and no thread sleeps long.
int shared_shutdown(int fd, Socket& s, int how);

/// Tells the peer in the pipe, or by TCP once this end is back there for good. False: later. An end
/// that may still send by the pipe must not use TCP: the peer would take that for a close.
bool tell_end(int fd, Socket& s);

}  // namespace clan::preload

// The end of a socket that has moved, from this side.
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// The last descriptor of the process is about to be closed. `others`: another process has the
/// socket.
void shared_close(int fd, Socket& s, bool others);

/// The same, before the process leaves its slot. The other end has closed and this process has
/// read all of it, so the pipe goes with us: processes that share this end and have not followed
/// find what TCP says of such a connection, and no pipe to look for.
void hand_over_end(int fd, Socket& s);

/// A process that has the socket closes it, or ends: the other end is to know whether that is a
/// reset, by SO_LINGER. True: it is.
bool say_linger(int fd, Socket& s);

int shared_shutdown(int fd, Socket& s, int how);

}  // namespace clan::preload

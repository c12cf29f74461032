// The end of a socket that has moved, from this side.
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// The last descriptor of the process is about to be closed. `others`: another process has the
/// socket open.
void shared_close(int fd, Socket& s, bool others);

/// A process that has the socket closes it, or ends: the other end is to know whether that is a
/// reset, by SO_LINGER. True: it is.
bool say_linger(int fd, Socket& s);

/// The kernel's shutdown() returns at once, whatever other processes with the socket do. So does
/// this: where one of them keeps it from announcing the end, the pipe's page records what is left
/// to be done (socket_face::kEnding), and every process of this end does it at its next check of
/// the socket. Meanwhile sends answer EPIPE, and nobody sleeps for long.
int shared_shutdown(int fd, Socket& s, int how);

/// Tells the other end in the pipe, or by TCP once this end is back there for good. False: later.
/// An end that may yet send by the pipe must not do so by TCP: the other one would take that for a
/// close, where nobody reads the pipe.
bool tell_end(int fd, Socket& s);

}  // namespace clan::preload

// shutdown() of a connection that has moved, while another process keeps the other end from being
// told.
//
// The kernel's shutdown() returns at once, whatever other processes with the socket do. So does
// ours: what is left to be done stands in the pipe's page (socket_face::kEnding), and every process
// of this end does it at its next look at the socket. Meanwhile sends answer EPIPE, and nobody
// sleeps for long.
#pragma once

#include <cstdint>

#include "clan/pipe.h"
#include "clan/socket_face.h"
#include "state/face.h"
#include "state/socket.h"

namespace clan::preload {

/// shutdown() has returned, and the other end has not been told.
inline bool owes_end(const Socket& s) { return (state_of(s.mine()) & socket_face::kEnding) != 0; }

/// Tells the other end in the pipe, or by TCP once this end is back there for good. False: later.
/// An end that may yet send by the pipe must not do so by TCP: the other one would take that for a
/// close, where nobody reads the pipe.
bool tell_end(int fd, Socket& s);

}  // namespace clan::preload

// shutdown() of a connection that has moved, while another process keeps this one from announcing
// it.
//
// The kernel's shutdown() returns at once, whatever other processes with the socket do. So does
// ours: the pipe's page records what is left to be done (socket_face::kEnding), and every process
// of this end does it at its next check of the socket. Meanwhile sends answer EPIPE, and nobody
// sleeps for long.
#pragma once

#include <cstdint>

#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "state/face.h"
#include "state/socket.h"

namespace clan::preload {

/// shutdown() has returned, and the other end does not know.
inline bool owes_end(const Socket& s) { return (state_of(s.mine()) & socket_face::kEnding) != 0; }

/// Tells the other end in the pipe, or by TCP once this end is back there for good. False: later.
/// An end that may yet send by the pipe must not do so by TCP: the other one would take that for a
/// close, where nobody reads the pipe.
bool tell_end(int fd, Socket& s);

}  // namespace clan::preload

// What the carrier's threads do to sockets of the program, by calls of the interposer: ringing,
// switching and going back.
#pragma once

#include "net/connection.h"
#include "state/remote.h"

namespace clan::preload {

/// The interposer's calls, as start() has got them.
extern const Interposer* the_program;

/// What a connection calls.
extern const CarrierCalls kProgramCalls;

/// Makes the pipe whose other end `attach` takes, and enters it: at this call, or at a later one.
/// The other end has been met.
void enter(int fd, Socket& s, const Route& route, bool (*attach)(Socket& s, Pipe&& end));

}  // namespace clan::preload

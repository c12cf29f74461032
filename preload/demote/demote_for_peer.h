// The other end's part of going back to TCP, done by this one.
#pragma once

#include <cstdint>

#include "state/socket.h"

namespace clan::preload {

/// Takes the other end back to TCP without its help. `taken`: what it sent by TCP and nobody has
/// read. False: that is not to be had.
bool do_their_part(int fd, Socket& s, int taken);

}  // namespace clan::preload

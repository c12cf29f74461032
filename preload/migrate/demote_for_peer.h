// The other end's part of going back to TCP, done by this one.
#pragma once

#include <cstdint>

#include "migrate/last_wait.h"
#include "state/socket.h"

namespace clan::preload {

/// Takes the other end back to TCP without its help. `taken`: what it sent by TCP and nobody has
/// read. False: not to be had, or not within `wait`.
bool do_their_part(int fd, Socket& s, int taken, LastWait& wait);

}  // namespace clan::preload

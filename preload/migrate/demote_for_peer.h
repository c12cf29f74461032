// The other end's part of going back to TCP, done by this one.
#pragma once

#include <cstdint>

#include "state/socket.h"

namespace clan::preload {

/// Takes the other end back to TCP without its help. `taken`: what it sent by TCP and nobody has read.
bool do_their_part(int fd, Socket& s, int taken, std::uint64_t deadline_ns);

}  // namespace clan::preload

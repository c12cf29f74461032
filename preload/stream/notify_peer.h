// Ringing the other end awake.
#pragma once

#include "state/socket.h"
#include "tcp/doorbell.h"

namespace clan::preload {

void ring_doorbell(int fd, Socket& s);

/// False, with EBADF: another thread has closed the descriptor, and the number may be another
/// file's by now.
bool still_names(int fd, const Socket& s);

}  // namespace clan::preload

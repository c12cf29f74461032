// The end of a socket that has moved, from this side.
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// The last descriptor of the process is about to be closed. `others`: another process has the
/// socket.
void shared_close(int fd, Socket& s, bool others);

int shared_shutdown(int fd, Socket& s, int how);

}  // namespace clan::preload

// Writing to a socket that has moved.
#pragma once

#include <sys/socket.h>

#include "state/socket.h"

namespace clan::preload {

/// Returns what sendmsg would, with errno. `flags` as there. The socket is shared().
ssize_t shared_send(int fd, Socket& s, const iovec* buffers, int count, int flags);

}  // namespace clan::preload

// Reading from a socket that has moved.
#pragma once

#include <sys/socket.h>

#include "state/socket.h"

namespace clan::preload {

/// Returns what recvmsg would, with errno. With MSG_TRUNC in `flags`, all buffers are null. The
/// socket is shared().
ssize_t shared_receive(int fd, Socket& s, const iovec* buffers, int count, int flags);

}  // namespace clan::preload

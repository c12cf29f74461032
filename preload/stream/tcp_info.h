// TCP_INFO of a connection that has moved.
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// Mends what the kernel has answered to TCP_INFO, if the connection has moved.
void show_pipe_in_tcp_info(int fd, Socket& s, void* value, socklen_t size);

}  // namespace clan::preload

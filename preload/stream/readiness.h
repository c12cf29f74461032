// What a socket that has moved is ready for.
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// POLLIN, POLLOUT, POLLRDHUP, POLLHUP, POLLERR as they hold now. `look`: ask the kernel too.
short readiness(int fd, Socket& s, bool look);

/// What select, poll and epoll do before they sleep. False: something of `events` holds already.
bool prepare_sleep(Socket& s, short events, bool by_bell = false);

/// FIONREAD.
int bytes_to_read(int fd, Socket& s);

}  // namespace clan::preload

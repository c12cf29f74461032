// What a socket that has moved is ready for.
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// Something is left to do for a connection that has moved: it goes back to TCP, or sends again
/// what came back, or owes its end. A few loads tell.
bool is_due(const Socket& s);
/// Does it, as far as that can be done now. May wait for a moment, so under no lock.
void do_due(int fd, Socket& s);

/// Which of the `wanted` events of poll() hold now, whatever is due, and POLLHUP and POLLERR. Does
/// nothing for the connection.
short ready_now(int fd, Socket& s, short wanted);
/// POLLIN, POLLOUT and POLLRDHUP behind do_due(). `look`: ask the kernel too.
short readiness(int fd, Socket& s, bool look);

/// What select, poll and epoll do before they sleep. False: something of `events` holds already.
bool prepare_sleep(Socket& s, short events);

/// FIONREAD.
int bytes_to_read(int fd, Socket& s);

}  // namespace clan::preload

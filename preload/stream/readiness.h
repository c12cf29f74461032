// The readiness of a moved socket.
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// Quickly checks whether something is due: to go back to TCP, send again, or announce the end.
bool is_due(const Socket& s);
/// Does what can be done of that now. May wait a moment, so call it under no lock.
void do_due(int fd, Socket& s);

/// Returns the `wanted` poll() events that hold now, and POLLHUP and POLLERR. Does nothing due.
short ready_now(int fd, Socket& s, short wanted);
/// Returns POLLIN, POLLOUT and POLLRDHUP after do_due(). `look`: ask the kernel too.
short readiness(int fd, Socket& s, bool look);

/// Prepares a sleep in select, poll or epoll. False: some of `events` hold already.
bool prepare_sleep(Socket& s, short events);

/// Returns FIONREAD's answer.
int bytes_to_read(int fd, Socket& s);

}  // namespace clan::preload

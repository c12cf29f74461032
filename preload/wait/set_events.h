// What sets learn about the sockets in them (state/hooks.h).
#pragma once

#include <cstdint>

#include "state/socket.h"

namespace clan::preload {

/// The socket has moved: the sets it is in watch its bell from now on.
void moved(Socket& s);

/// It has gone back to TCP: they watch what the application asked for.
void went_back(Socket& s);

/// The socket stays on TCP for good: sets need not remember it, and one without others is the
/// kernel's alone.
void stayed(Socket& s);

/// The socket is in a set whose sockets stay on TCP: it goes back, and the kernel answers for it.
void take_off_pipe(int fd, Socket& s);

/// A call has answered EAGAIN although there may be bytes or room: sets check the socket again, and
/// do not sleep for long meanwhile.
void going_back(Socket& s);

/// A descriptor is about to be closed. The kernel keeps what is registered by it while another one
/// of the same socket is open, and goes on to report that: such a connection is TCP's from now on,
/// as nobody can speak to its socket by that descriptor any more.
void before_descriptor_goes(int fd);

/// A descriptor of the socket is closed or reused: the kernel takes it out of its sets, and so do
/// we.
void left_descriptor(Socket& s, int fd);

}  // namespace clan::preload

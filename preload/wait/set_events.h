// Events of sockets that their sets have to follow (state/hooks.h).
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// The socket has moved: its sets watch its bell.
void moved(Socket& s);

/// It is back on TCP: its sets watch what the application asked for.
void went_back(Socket& s);

/// It stays on TCP for good: its sets need not remember it.
void stayed(Socket& s);

/// Takes it back to TCP and leaves it to the kernel, in a set whose sockets stay there.
void take_off_pipe(int fd, Socket& s);

/// A call has answered EAGAIN though bytes or room may come: its sets check it again, and threads
/// sleep briefly meanwhile.
void going_back(Socket& s);

/// Keeps a registered socket on TCP when one of its descriptors is about to close. The kernel keeps
/// what was registered by that number, and reports it, while another is open; nothing can change it
/// by the number any more.
void before_descriptor_goes(int fd);

/// A descriptor is closed or reused: it leaves our sets, as it leaves the kernel's.
void left_descriptor(Socket& s, int fd);

}  // namespace clan::preload

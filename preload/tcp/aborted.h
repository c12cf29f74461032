// A moved connection ends by a reset, from the kernel or the library.
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// Notes an error that the kernel has reported to this end, and will not again. All processes of
/// both ends learn of a reset, but not which error it was.
void note_error(Socket& s, int error);

/// Resets a connection that cannot go on, and logs why (a clause) and how to keep it on TCP.
void break_off(int fd, Socket& s, const char* why);

/// Resets the connection if TCP has bytes that no honest peer sends once it sends by the pipe.
/// Called when the kernel reports it readable. The queue is read before kGone, as bytes sent after
/// that are the application's. True: reset.
bool reset_for_strays(int fd, Socket& s);

}  // namespace clan::preload

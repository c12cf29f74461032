// A connection that has moved ends by a reset, not in good order: by the kernel's word, or as the
// library breaks it off.
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// Notes an error of this end that the kernel has reported, and will not report again. All
/// processes of both ends know then, but for which one it was.
void note_error(Socket& s, int error);

/// Resets a connection that cannot go on, tells this end, and logs why (a clause) with what keeps
/// such connections on TCP.
void break_off(int fd, Socket& s, const char* why);

/// The kernel has said that there is something to read. Where the other end sends in its pipe, no
/// honest one has sent a byte by TCP: the connection is reset. The queue is asked first and kGone
/// checked after it, as what was sent behind that is the application's. True: it was reset.
bool reset_for_strays(int fd, Socket& s);

}  // namespace clan::preload

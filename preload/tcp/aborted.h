// A connection that has moved ends by a reset, not in good order: by the kernel's word, or as the
// library breaks it off.
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// Notes an error of this end that the kernel has reported, and will not report again. All
/// processes of both ends know then, but for which one it was. A reset that comes of doorbells
/// only, which a process that was killed has left unread, is an end of file: so TCP would have it.
void note_error(Socket& s, int error);

/// Resets a connection that cannot go on, tells this end, and logs why (a clause) with what keeps
/// such connections on TCP.
void break_off(int fd, Socket& s, const char* why);

}  // namespace clan::preload

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

/// The kernel has said that there is something to read, and no doorbell is there. Bytes that no
/// doorbell explains would say so at every look, and keep each sleep from being one: the other end
/// has broken the protocol, and the connection is reset at once. True: it was.
///
/// No honest end can have sent them. It counts a doorbell before it sends the byte, and sends
/// nothing else by TCP between the switch and kGone:
///
///   1 bytes of doorbells that have been read here  >= kDoorbellsRead, as it is counted afterwards
///   2 bytes of doorbells that have been sent       <= kDoorbells, as it is counted before
///   3 what lies in the queue = what has come less what has been read
///
/// so with kDoorbellsRead taken first, then the queue, then kDoorbells, the queue holds no more
/// than kDoorbells - kDoorbellsRead, whatever is stopped, killed or off its processor wherever.
/// kGone is checked last: what was sent after it is the application's.
bool reset_for_strays(int fd, Socket& s);

}  // namespace clan::preload

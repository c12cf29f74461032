// Bytes by TCP that are no doorbells.
#pragma once

#include "state/socket.h"

namespace clan::preload {

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

// The end of a process, and of its part in shared memory.
#pragma once

#include "clan/reasons.h"

namespace clan::preload {

/// Processes that share our sockets must find their pipes when we are gone.
void at_exit();

/// A sandbox is about to be closed around the process: it knows the system calls of the program,
/// not ours, and may kill for any other. Nothing moves here any more, and what has moved goes back
/// while that is possible. Sockets that other processes share with us stay on TCP there too, as we
/// could not follow them.
void enter_sandbox(reasons::Why why);

}  // namespace clan::preload

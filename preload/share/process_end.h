// The end of a process, and of its part in shared memory.
#pragma once

#include "clan/face/reasons.h"

namespace clan::preload {

/// Takes back what this process has in memory that others see.
void at_exit();

/// A sandbox is about to be closed around the process: it knows the system calls of the program,
/// not ours, and may kill for any other. Nothing moves here any more, and what has moved goes back
/// while that is possible.
void enter_sandbox(reasons::Why why);

/// A thread is about to have a table of descriptors of its own, or a process without our memory to
/// share ours: what one of them closes, the other may still use, and the library has one table.
/// Nothing moves here any more, and what has moved goes back. `flags`: CLONE_… of the new thread or
/// process.
void before_clone(unsigned long flags);
/// Before unshare() or close_range() by which the calling thread leaves the table of the others, if
/// there are any.
void before_leaving_table();

}  // namespace clan::preload

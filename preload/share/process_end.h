// The end of a process, and of its part in shared memory.
#pragma once

#include "clan/face/reasons.h"

namespace clan::preload {

/// Takes back what this process has in shared memory.
void at_exit();

/// Takes all connections back to TCP, and moves no more of them. Called, for example, before the
/// program enters a sandbox, which may kill for the library's system calls.
void enter_sandbox(reasons::Why why);

/// Does the same before clone(`flags`) that gives a thread its own table of descriptors, or shares
/// ours with a process that does not share our memory: the library has one table, and a descriptor
/// that one of them closes may stay open in the other.
void before_clone(unsigned long flags);
/// Does the same before unshare() or close_range() by which a thread leaves the table of others.
void before_leaving_table();

}  // namespace clan::preload

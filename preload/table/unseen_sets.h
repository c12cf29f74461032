// Epoll sets that bypass the C library: made by system call instructions of the program (Rust's
// rustix, Go's runtime).
//
// Nothing would wake a thread that waits in such a set for a moved connection. So while a process
// has one, its connections stay on TCP or go back. /proc is checked before a connection moves, and
// when a call found nothing on a socket that no known wait ever named. A later set, waited in
// without such a call, goes unnoticed.
#pragma once

#include "clan/face/reasons.h"

namespace clan::preload {

/// Record a set that the program makes or uses by a C call, and those that it closes.
void saw_set(int epfd);
void forget_set(unsigned first, unsigned last);
bool is_seen_set(int epfd);
/// Records the sets inherited from the program before exec.
void see_sets_at_start();

/// Returns kUnseenSet if the process has such a set; kUring if it has a ring whose making went
/// unseen (share/uring.h), by a liburing linked statically or opened later; else kNone. Each call
/// pays for 64 descriptors of /proc; until the last check is paid for, its answer holds. The first
/// find calls hooks.unseen_use().
reasons::Why unseen_use();

}  // namespace clan::preload

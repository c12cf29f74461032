// Epoll sets that the library has not seen: made by an instruction of the program's own (Rust's
// rustix, Go's runtime), not by the C library's name or number.
//
// A thread that waits in such a set for a connection that has moved would never be woken. So while
// a process has one, its connections stay on TCP, and those that have moved go back. /proc is asked
// before a connection moves, and when a call has found nothing on a socket that no wait known here
// has ever been about. A set that comes later, and is waited in without such a call, is not
// noticed.
#pragma once

#include "clan/face/reasons.h"

namespace clan::preload {

/// The program has made this set by its name, or uses it so: it is seen. Closed, it is not.
void saw_set(int epfd);
void forget_set(unsigned first, unsigned last);
bool is_seen_set(int epfd);
/// Sets that a program which is executed has from the one before are nobody's to be afraid of.
void see_sets_at_start();

/// kUnseenSet: the process has another one. kUring: it has a ring that the library has not seen made
/// (share/uring.h), by a liburing that is linked statically or opened later. Each question
/// pays for 64 descriptors in /proc: it is looked there when the last look has been paid for, and
/// else the answer is that one's. When something is found first, hooks.unseen_use() is called.
reasons::Why unseen_use();

}  // namespace clan::preload

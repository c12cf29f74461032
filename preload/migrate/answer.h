// The other end goes back to TCP: what that takes of this one.
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// The other end wants to go back to TCP: does what that takes of us. To be called when state_of(theirs) has
/// kLeaving and ours not kGone. False: later, see put_off().
bool answer_leaving(int fd, Socket& s);

/// The other end has gone back to TCP, and all it put into the pipe has been read. True: what is read next is
/// the kernel's.
bool came_back(int fd, Socket& s);

/// What both ends do of it. `fd`'s other end has said kLeaving, or we have.
void go(int fd, Socket& s);

}  // namespace clan::preload

// How the two ends of a connection that moves get their bells (state/bell.h).
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// Makes the bells of a connection that is about to move: `s` has its own and the other end's, and
/// `passed` gets what the other end needs, as adopt_bells() takes it. False: this process has no
/// /proc, or no room for descriptors; it goes without.
bool make_bells(Socket& s, int (&passed)[2]);
/// The other end has made them. Closes those that there is no room for.
void adopt_bells(Socket& s, const int (&passed)[2]);

}  // namespace clan::preload

// epoll sets that stay open over exec: what they ask of sockets that have moved is known to the
// process alone, and the kernel has our tags. So the program that is executed, if it loads the
// library, finds in its environment what was asked, beside the connection (share/exec.h):
//
//   eSET/FD/FIRED/EVENTS/DATA,      the last two in hexadecimal digits
#pragma once

#include <cstddef>

#include "state/socket.h"

namespace clan::preload {

/// Writes what sets that stay open ask of a socket that has moved, by this descriptor. How long it
/// is; -1: there is no room, or a set has more to say than that, and the socket has to go back.
int describe_sets(int fd, Socket& s, char* text, std::size_t room);

/// In the program that was executed, with the connection there: takes in what was described. How
/// long it was; 0: it is something else.
int take_over_set(const char* text);

}  // namespace clan::preload

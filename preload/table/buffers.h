// As much as TCP: how much a connection in a pipe buffers, and how many pipes there may be.
#pragma once

#include <cstdint>

#include "clan/face/pipe.h"
#include "clan/face/reasons.h"
#include "state/socket.h"

namespace clan::preload {

/// Returns the size of the rings of a pipe that is made here.
std::uint32_t ring_bytes();

/// The address space of this process is limited, and a pipe that somebody else has made takes much
/// of it.
bool too_large_here(const Pipe& pipe);

/// Why one more pipe would be beyond what pipes may take of memory, or of the mappings of a
/// process. kNone: it is not.
reasons::Why why_no_pipe();
/// How many pipes leave the program enough of the mappings that a process may have: each is one.
std::uint64_t pipes_within_mappings(std::uint64_t most_mappings);
/// So many pipes of small rings fit into the part of a limited address space that is for them.
std::uint64_t pipes_within_address_space(std::uint64_t bytes);

/// It has moved here, and its memory is the user's: both ends count, and of the two of a pipe one
/// is charged. The Socket is another connection's from now on.
void count_pipe(Socket& s, bool charged);

void discount_pipe(Socket& s);

/// What the pipe of a socket takes, by the socket's buffers: when it moves, and when they are set.
void limit_as_tcp(int fd, Socket& s);

/// What SO_RCVLOWAT is when a program has set it: the kernel takes no more than half of the receive
/// buffer, or of what that may grow to.
int low_water_as_tcp(int fd, int asked);

/// By a thread that sends: others of the user may have more pipes by now, or fewer. Looks now and
/// then.
void share_memory_anew(std::uint64_t now_ns);

}  // namespace clan::preload

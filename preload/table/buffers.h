// How much a connection in a pipe buffers, as in TCP, and how many pipes there may be.
#pragma once

#include <cstdint>

#include "clan/face/pipe.h"
#include "clan/face/reasons.h"
#include "state/socket.h"

namespace clan::preload {

/// Returns the ring size of pipes made here.
std::uint32_t ring_bytes();

/// Whether another process's pipe takes too much of this process's limited address space.
bool too_large_here(const Pipe& pipe);

/// Returns why pipes may take no more memory, mappings or address space; kNone if they may.
reasons::Why why_no_pipe();

/// Counts a connection that moved here, as both ends do; one of them is `charged` for the memory.
void count_pipe(Socket& s, bool charged);

/// Undoes count_pipe(): the Socket becomes another connection's.
void discount_pipe(Socket& s);

/// Limits the pipe by the socket's buffer sizes, when it moves and when they are set.
void limit_as_tcp(int fd, Socket& s);

/// Returns what SO_RCVLOWAT becomes when set to `asked`: the kernel allows half of the receive
/// buffer, at its largest.
int low_water_as_tcp(int fd, int asked);

/// Adapts the limits here to the user's number of pipes. Senders call it; it acts now and then.
void share_memory_anew(std::uint64_t now_ns);

}  // namespace clan::preload

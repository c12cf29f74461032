// Connections to another host: how they go back to TCP before a process has them that the
// carrier cannot follow, and how a process ends that has some.
//
// Both ends go back as between two processes of one host (migrate/demote.h), each by itself, and
// the carriers tell each of the other. When both have, the pipe is as any other: what has been
// received and not read lies there, behind it comes what TCP brings, and fork and exec know how to
// hand that on.
#pragma once

#include <cstdint>

#include "clan/reasons.h"
#include "state/socket.h"

namespace clan::preload {

/// This end has said that it leaves: waits until the other host has done its part, and resets the
/// connection if that takes too long. 0: 2 s. Under Socket::moving.
void wait_for_far_end(int fd, Socket& s, std::uint64_t until_ns = 0);

/// The connection goes back from the other host, before a process has it that the carrier
/// cannot follow. What has not been read stays in its pipe.
void leave_far(int fd, Socket& s, reasons::Why why);
/// All that this process has: before a fork.
void leave_all_far();

/// The process ends: what has been sent is to arrive.
void end_far();

}  // namespace clan::preload

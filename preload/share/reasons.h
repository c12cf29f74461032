// Why connections of this process stay on TCP: in the log, and in memory that `clan stat` reads
// (clan/face/reasons.h).
//
// Any thread, at decisions only. The first one makes the memory, unless the limit of file sizes or
// a filter of system calls forbids it. A child of fork uses its parent's.
#pragma once

#include <cstdint>

#include "clan/face/reasons.h"
#include "state/socket.h"

namespace clan::preload {

/// See hooks.h. A weak reason (reasons::is_weak) does not replace another.
void publish_why(int fd, Socket& s, reasons::Why why, std::uint32_t number);
void withdraw_why(Socket& s);

void publish_of_process(reasons::Why why, std::uint32_t number);
void withdraw_of_process();

}  // namespace clan::preload

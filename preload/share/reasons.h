// Why connections of this process stay on TCP, where `clan stat` finds it (clan/face/reasons.h),
// and in the log.
//
// Any thread, at decisions only. The memory is made at the first one; where the limit of file sizes
// or a filter of system calls does not allow that, only the log has it. A child of fork goes on
// with its parent's memory.
#pragma once

#include <cstdint>

#include "clan/face/reasons.h"
#include "state/socket.h"

namespace clan::preload {

/// See hooks.h. What is said because neither end says more does not take the place of what is.
void publish_why(int fd, Socket& s, reasons::Why why, std::uint32_t number);
void withdraw_why(Socket& s);

void publish_of_process(reasons::Why why, std::uint32_t number);
/// Takes back what is said of it.
void withdraw_of_process();

}  // namespace clan::preload

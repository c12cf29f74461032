// poll() with sockets that have moved: what the application waits for on those is answered from the
// pipe; in the kernel they are watched for doorbells.
#pragma once

#include <poll.h>

#include <cstdint>

#include "wait/kernel_wait.h"

namespace clan::preload {

/// `sleep(copy, count, ns)` is the kernel's poll, in the way the application called it.
int poll_moved(pollfd* fds, nfds_t count, std::int64_t timeout_ns, const KernelPoll& sleep);

}  // namespace clan::preload

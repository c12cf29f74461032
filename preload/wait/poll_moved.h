// poll() with sockets that have moved: what the application waits for on those is answered from the
// pipe; in the kernel they are watched for doorbells.
#pragma once

#include <poll.h>

#include <cstdint>

#include "clan/face/wait.h"
#include "state/remote.h"
#include "wait/kernel_wait.h"

namespace clan::preload {

/// The calling thread's, for all its calls.
inline Waiter& waiter_of_poll() {
  static thread_local Waiter w{WaitOptions{}};
  return w;
}

/// When one of what is polled is remote.
inline Waiter& waiter_of_remote_poll() {
  static thread_local Waiter w{kRemoteWait};
  return w;
}

/// `sleep(copy, count, ns)` is the kernel's poll, in the way the application called it.
int poll_moved(pollfd* fds, nfds_t count, std::int64_t timeout_ns, const KernelPoll& sleep);

}  // namespace clan::preload

// epoll_wait(), as a loop over steps that only look.
#pragma once

#include <sys/epoll.h>

#include <cstdint>

#include "wait/kernel_wait.h"

namespace clan::preload {

/// `sleep(events, most, ns)` is the kernel's wait as the application called it.
int wait_for_events(int epfd, epoll_event* events, int most, std::int64_t timeout_ns,
                    const KernelEpoll& sleep);

}  // namespace clan::preload

// epoll_ctl(); and epoll_wait(), as a loop over steps that only look.
#pragma once

#include <signal.h>
#include <sys/epoll.h>

#include <cstdint>

#include "wait/poll_moved.h"

namespace clan::preload {

/// Something is put into the set of which only the kernel knows.
void note_plain(int epfd, int op);

/// As epoll_ctl(), of a descriptor that may be a socket in a pipe.
int control(int epfd, int op, int fd, epoll_event* event);

/// `sleep(events, most, ns)` is the kernel's wait as the application called it, with the mask of
/// signals `mask` if there is one.
int wait_for_events(int epfd, epoll_event* events, int most, std::int64_t timeout_ns,
                    const KernelEpoll& sleep, const sigset_t* mask = nullptr);

/// The same in a set for one poll().
int wait_in(PolledSet& polled, epoll_event* events, int most, std::int64_t timeout_ns);

}  // namespace clan::preload

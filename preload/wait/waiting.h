// epoll_ctl(), and epoll_wait() as a loop over steps.
#pragma once

#include <signal.h>
#include <sys/epoll.h>

#include <cstdint>

#include "wait/poll_moved.h"

namespace clan::preload {

/// Notes that a descriptor only the kernel knows is put into the set.
void note_plain(int epfd, int op);

/// Does epoll_ctl() of any descriptor.
int control(int epfd, int op, int fd, epoll_event* event);

/// Does epoll_wait(). `sleep(events, most, ns)` is the kernel's, as the application called it;
/// `mask`: its signal mask, if any.
int wait_for_events(int epfd, epoll_event* events, int most, std::int64_t timeout_ns,
                    const KernelEpoll& sleep, const sigset_t* mask = nullptr);

/// Does the same in a set for one poll().
int wait_in(PolledSet& polled, epoll_event* events, int most, std::int64_t timeout_ns);

}  // namespace clan::preload

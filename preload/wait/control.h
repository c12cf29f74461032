// epoll_ctl().
#pragma once

#include <sys/epoll.h>

namespace clan::preload {

/// Something is put into the set of which only the kernel knows.
void note_plain(int epfd, int op);

/// As epoll_ctl(), of a descriptor that may be a socket in a pipe.
int control(int epfd, int op, int fd, epoll_event* event);

}  // namespace clan::preload

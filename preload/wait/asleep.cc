#include "wait/asleep.h"

#include <poll.h>

#include <algorithm>
#include <cstdint>

#include "kernel/sock_diag.h"
#include "stream/going_back.h"
#include "stream/poll_tcp.h"
#include "stream/readiness.h"
#include "table/fd_table.h"
#include "tcp/doorbell.h"
#include "tcp/tcp_backlog.h"
#include "wait/epoll_set.h"
#include "wait/set_sleep.h"

namespace clan::preload {

short poll_answer(int fd, Socket& s, short events, bool look) {
  short ready = readiness(fd, s, look);
  if ((ready & POLLIN) != 0) ready |= POLLRDNORM;
  if ((ready & POLLOUT) != 0) ready |= POLLWRNORM;
  return static_cast<short>(ready & (events | kAlways));
}

Asleep::Asleep(int fd, short events, bool rings) : held_(acquire(fd)) {
  if (!held_ && known_epoll(fd)) {
    bool sleeps = true;
    set_ = set_prepare_sleep(fd, &sleeps, &longest_);
    ready_ = !sleeps;
  } else if (held_ && held_->shared()) {
    left_to_others_ = doorbells_waiting(*held_) && !poll_tcp_socket(fd, *held_);
    bell_.emplace(*held_, rings);
    sleeper_.emplace(*held_, (events & (POLLIN | POLLRDNORM | POLLRDHUP)) != 0,
                     (events & (POLLOUT | POLLWRNORM)) != 0);
    const bool sleeps = prepare_sleep(*held_, events, bell() != nullptr);
    if ((events & (POLLOUT | POLLWRNORM)) != 0) longest_ = kRoomNs;
    ready_ = (!sleeps || !held_->pipe.seems_empty()) && poll_answer(fd, *held_, events, false) != 0;
    // A doorbell for room does not come before the bytes of TCP have been read.
    if (is_going_back(*held_) || (reads_tcp(*held_) && (events & (POLLOUT | POLLWRNORM)) != 0))
      longest_ = kGoingBackNs;
  }
}

}  // namespace clan::preload

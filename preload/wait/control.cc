#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "clan/face/pipe.h"
#include "demote/demote.h"
#include "os/real.h"
#include "os/sys.h"
#include "state/socket.h"
#include "table/fd_table.h"
#include "table/unseen_sets.h"
#include "wait/epoll_set.h"
#include "wait/ready_check.h"
#include "wait/registration.h"
#include "wait/set_events.h"
#include "wait/set_lock.h"
#include "wait/shared_sets.h"
#include "wait/waiting.h"

namespace clan::preload {
namespace {

// Sets what the application wants of a moved socket.
void ask_for(Interest& i, const epoll_event& event) {
  i.events = event.events;
  i.data = event.data;
  i.fired = false;
  i.told = {};
  i.since = order_stamp() & PipeStamp::kTimeMask;
  i.listed = false;
  watch(i);
  i.set->changes.fetch_add(1, std::memory_order_relaxed);
  tell_sleepers(i, true);
}

// Whether the kernel would accept the event.
bool kernel_would_take(const epoll_event* event) {
  constexpr std::uint32_t kWithExclusive =
      EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;
  return event != nullptr &&
         ((event->events & EPOLLEXCLUSIVE) == 0 || (event->events & ~kWithExclusive) == 0);
}

// `before`: the descriptor's interest in this set, if any. `lost`: no memory to remember it.
int control_add(int epfd, int fd, epoll_event* event, Socket& s, Set* set, Interest* before,
                bool* lost) {
  if (before != nullptr && before->parked) {
    KeepErrno keep;
    sys::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, nullptr);
  }
  // A moved one is registered for TCP's news at once: an event that holds would wake a sleeper.
  epoll_event news = for_tcp(fd);
  const bool moved = s.shared() && set != nullptr && kernel_would_take(event);
  const int rc = real().epoll_ctl(epfd, EPOLL_CTL_ADD, fd, moved ? &news : event);
  if (rc != 0) {
    if (before != nullptr && before->parked) remove(before);  // no longer in the kernel's set
    return rc;
  }
  if (before != nullptr) remove(before);  // its descriptor was closed unseen
  Interest* const i = set != nullptr ? add(*set, s, fd, *event) : nullptr;
  if (i == nullptr) {
    KeepErrno keep;
    if (moved) sys::epoll_ctl(epfd, EPOLL_CTL_MOD, fd, event);
    *lost = true;
    return rc;
  }
  i->since = order_stamp() & PipeStamp::kTimeMask;
  if (s.shared()) {
    KeepErrno keep;
    moved ? answer_from_pipe(*i) : watch_moved(*i);
    tell_sleepers(*i, true);
  } else if (moved) {  // back on TCP meanwhile
    KeepErrno keep;
    change_to(*set, fd, event);
  }
  return rc;
}

int control_socket(int epfd, int op, int fd, epoll_event* event, Socket& s, bool* lost) {
  if (op == EPOLL_CTL_ADD) (void)make(epfd);
  const Guard guard(epfd);
  Set* const set = guard.set();
  Interest* i = set != nullptr ? find(*set, &s, fd) : nullptr;
  if (op == EPOLL_CTL_ADD) {
    if (i != nullptr && i->parked && event != nullptr && (event->events & EPOLLEXCLUSIVE) == 0) {
      i->parked = false;
      if (std::exchange(i->missed, false)) take_news(*i);
      ask_for(*i, *event);
      return 0;
    }
    return control_add(epfd, fd, event, s, set, i, lost);
  }
  if (i != nullptr && i->parked) {
    errno = ENOENT;
    return -1;
  }
  if (i == nullptr || !i->moved) {
    const int rc = real().epoll_ctl(epfd, op, fd, event);
    if (rc == 0 && i != nullptr) {
      if (op == EPOLL_CTL_DEL) {
        remove(i);
      } else {
        i->events = event->events;
        i->data = event->data;
      }
    }
    return rc;
  }
  if (op == EPOLL_CTL_DEL) {
    // Programs take sockets out and in with every message. Not if processes may share the set.
    if (!s.inherited.load(std::memory_order_relaxed)) {
      i->parked = true;
      unwatch(*i);
      return 0;
    }
    const int rc = real().epoll_ctl(epfd, op, fd, event);
    remove(i);
    return rc;
  }
  if (op != EPOLL_CTL_MOD || event == nullptr ||
      ((event->events | i->events) & EPOLLEXCLUSIVE) != 0) {
    errno = event == nullptr ? EFAULT : EINVAL;
    return -1;
  }
  ask_for(*i, *event);
  return 0;
}

}  // namespace

void note_plain(int epfd, int op) {
  Set* set = op == EPOLL_CTL_ADD ? find(epfd) : nullptr;
  if (set == nullptr || set->plain.load(std::memory_order_relaxed)) return;
  set->plain.store(true, std::memory_order_relaxed);
  set->changes.fetch_add(1, std::memory_order_relaxed);
}

int control(int epfd, int op, int fd, epoll_event* event) {
  SocketRef s = acquire(fd);
  if (!s || s->stays_on_tcp()) {  // nothing to remember
    note_plain(epfd, op);
    const int rc = real().epoll_ctl(epfd, op, fd, event);
    if (rc == 0 && op == EPOLL_CTL_ADD && !s && is_seen_set(fd)) take_off_pipes(fd);
    return rc;
  }
  if (op != EPOLL_CTL_DEL && has_shared_sets() && changes_shared(epfd))
    leave_pipe(fd, false, reasons::Why::kSharedSet);
  bool lost = false;
  const int rc = control_socket(epfd, op, fd, event, *s, &lost);
  if (lost) never_move(fd, *s, reasons::Why::kSharedSet);
  const Set* const set = op == EPOLL_CTL_ADD ? find(epfd) : nullptr;
  // relaxed: take_off_pipes() sets it under the lock, then sees a socket that comes later
  if (set != nullptr && set->on_tcp.load(std::memory_order_relaxed)) take_off_pipe(fd, *s);
  return rc;
}

}  // namespace clan::preload

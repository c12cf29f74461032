#include "wait/registration.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "clan/face/pipe.h"
#include "wait/poll_moved.h"
#include "wait/ready_check.h"

namespace clan::preload {
namespace {

std::uint64_t tag(int fd) { return kTag | (static_cast<std::uint32_t>(fd) & (kOfBell - 1)); }

epoll_event for_bell(int fd) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = tag(fd) | kOfBell;
  return event;
}

}  // namespace

bool is_empty(int epfd) {
  bool any = false;
  return for_registered(epfd, [&](int, unsigned) { any = true; }) && !any;
}

int change(const Set& set, int op, int fd, epoll_event* event) {
  if (set.names == 0) {
    errno = EBADF;
    return -1;
  }
  return sys::epoll_ctl(set.epfd, op, fd, event);
}

int ask_kernel(const Set& set, epoll_event* events, int most) {
  if (set.polled != nullptr) return set.polled->ask(events);
  return set.names == 0 ? 0 : sys::epoll_wait(set.epfd, events, most, 0);
}

void change_to(const Set& set, int fd, epoll_event* event) {
  if (change(set, EPOLL_CTL_MOD, fd, event) == 0) return;
  if (errno == EINVAL) change(set, EPOLL_CTL_DEL, fd, nullptr);
  if (errno == EINVAL || errno == ENOENT) change(set, EPOLL_CTL_ADD, fd, event);
}

epoll_event for_tcp(int fd) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
  event.data.u64 = tag(fd);
  return event;
}

bool is_spent(const Interest& i) {
  constexpr unsigned kHow = EPOLLET | EPOLLONESHOT | EPOLLWAKEUP | EPOLLEXCLUSIVE;
  bool spent = false;
  (void)for_registered(i.set->epfd, [&](int fd, unsigned events) {
    if (fd == i.fd) spent = (events & ~kHow) == 0;
  });
  return spent;
}

void answer_from_pipe(Interest& i) {
  if (!i.moved) ++i.set->moved;
  i.moved = true;
  watch(i);
}

void watch_moved(Interest& i) {
  if (!i.moved && (i.events & EPOLLONESHOT) != 0) i.fired = is_spent(i);
  epoll_event event = for_tcp(i.fd);
  change_to(*i.set, i.fd, &event);
  answer_from_pipe(i);
}

bool watches_bell(Interest& i) {
  const int bell = i.socket->bell.get();
  if (bell < 0) i.by_bell = false;
  if (i.by_bell || bell < 0 || i.set->polled != nullptr) return i.by_bell;
  const KeepErrno keep;
  epoll_event event = for_bell(i.fd);
  if (change(*i.set, EPOLL_CTL_ADD, bell, &event) == 0) return i.by_bell = true;
  // It is registered for another descriptor of the socket, perhaps gone, or by another process.
  return i.by_bell = errno == EEXIST && change(*i.set, EPOLL_CTL_MOD, bell, &event) == 0;
}

void leave_bell(Interest& i) {
  if (!i.by_bell) return;
  i.by_bell = false;
  const int bell = i.socket->bell.get();
  if (bell < 0 || i.set->polled != nullptr) return;
  const KeepErrno keep;
  const Interest* const other = find_interest(
      *i.socket, [&](const Interest& one) { return one.set == i.set && one.by_bell; });
  if (other != nullptr) {
    epoll_event event = for_bell(other->fd);
    change(*i.set, EPOLL_CTL_MOD, bell, &event);
  } else if (i.set->use == nullptr) {  // otherwise it may be another process's
    change(*i.set, EPOLL_CTL_DEL, bell, nullptr);
  }
}

void watch_kernel(Interest& i) {
  if (!i.moved) return;
  KeepErrno keep;
  if (i.set->polled != nullptr) {
    i.set->polled->leave(i);
  } else {
    leave_bell(i);
    epoll_event event{};
    event.events = i.fired ? EPOLLONESHOT : i.events;
    event.data = i.data;
    change_to(*i.set, i.fd, &event);
  }
  i.moved = false;
  --i.set->moved;
  i.set->note_happened(order_stamp());
  unwatch(i);
}

int without_ours(epoll_event* events, int told) {
  return told > 0 ? static_cast<int>(std::remove_if(events, events + told, has_our_tag) - events)
                  : 0;
}

void tell_sleepers(Interest& i, bool look) {
  Set& set = *i.set;
  if (!i.moved || i.parked || i.fired) return;
  // order: after Set::remembered, see epoll_set.cc
  if (set.sleepers == 0 &&
      (set.epfd < 0 || plain_sleepers[set.epfd].load(std::memory_order_seq_cst) == 0))
    return;
  KeepErrno keep;
  (void)watches_bell(i);
  i.socket->pipe.keep_wanted(wants_room(i));
  if (look && !is_ready(i) && longest_sleep(i) == kNoCap) return;
  if (!i.moved) return;
  // Asked for room, which is always there, the kernel reports at once, each time.
  epoll_event event = for_tcp(i.fd);
  event.events |= EPOLLOUT;
  change_to(set, i.fd, &event);
}

}  // namespace clan::preload

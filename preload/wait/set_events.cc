#include "wait/set_events.h"

#include <sys/epoll.h>

#include "clan/face/reasons.h"
#include "demote/demote.h"
#include "os/memory_owner.h"
#include "os/sys.h"
#include "table/fd_table.h"
#include "wait/epoll_set.h"
#include "wait/registration.h"
#include "wait/set_lock.h"

namespace clan::preload {
namespace {

void leave_to_kernel(Interest& i) {
  i.set->plain.store(true, std::memory_order_relaxed);  // relaxed: written under the lock
  remove(&i);
}

void give_to_kernel(Interest& i) {
  if (!i.parked) return watch_kernel(i);
  KeepErrno keep;
  change(*i.set, EPOLL_CTL_DEL, i.fd, nullptr);
  remove(&i);
}

}  // namespace

void moved(Socket& s) {
  for_interests(s, [](Interest& i) {
    watch_moved(i);
    tell_sleepers(i, false);
  });
}

void went_back(Socket& s) {
  if (s.is_watched() && !s.shared()) for_interests(s, give_to_kernel);
}

void take_off_pipe(int fd, Socket& s) {
  // Another thread may have closed it meanwhile, and the number be reused.
  if (const SocketRef now = acquire(fd); now.get() != &s) return;
  leave_for_kernel(fd, s, reasons::Why::kPolledSet);
  if (!s.shared()) return;
  for_interests(s, [](Interest& i) {
    if (!i.set->on_tcp.load(std::memory_order_relaxed)) return;  // relaxed: under the lock
    const bool stays = !i.parked;
    give_to_kernel(i);
    if (stays) leave_to_kernel(i);
  });
}

void going_back(Socket& s) {
  if (!s.is_watched()) return;
  for_interests(s, [](Interest& i) {
    if (!i.moved || i.parked || i.fired) return;
    watch(i);
    tell_sleepers(i, false);
  });
}

void stayed(Socket& s) {
  if (!s.is_watched()) return;
  for_interests(s, [](Interest& i) {
    if (!i.moved && !i.parked) leave_to_kernel(i);
  });
}

void before_descriptor_goes(int fd) {
  const SocketRef s = acquire(fd);
  // relaxed: a copy that another thread makes now is made before this close or after it
  if (!s || !s->is_watched() || s->fds.load(std::memory_order_relaxed) < 2) return;
  if (in_borrowed_memory()) return;  // it stays open in the parent, which has these sets
  const KeepErrno keep;
  bool is_registered = false;
  for_interests(*s, [&](const Interest& i) { is_registered |= i.fd == fd && !i.parked; });
  if (is_registered) never_move(fd, *s, reasons::Why::kOutlived);
}

void left_descriptor(Socket& s, int fd) {
  if (!s.is_watched()) return;
  for_interests(s, [&](Interest& i) {
    if (i.fd != fd) return;
    // The kernel keeps it registered while the file has another descriptor. Moved and parked ones
    // are taken out: nothing can change them by this number any more.
    KeepErrno keep;
    const bool stays = s.fds.load(std::memory_order_relaxed) > 1;
    if (stays && !i.moved && !i.parked) return leave_to_kernel(i);
    if (stays) change(*i.set, EPOLL_CTL_DEL, fd, nullptr);
    remove(&i);
  });
}

}  // namespace clan::preload

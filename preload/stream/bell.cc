#include "stream/bell.h"

#include <sys/epoll.h>

#include <cerrno>

#include "clan/face/socket_face.h"
#include "demote/demote_on_request.h"
#include "os/memory_owner.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/remote.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"
#include "tcp/aborted.h"
#include "tcp/ring.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

// A set of a bell alone, by edges. -1: there is no room.
int make_set(int bell) {
  const int set = move_high_to_spare(static_cast<int>(sys::call(SYS_epoll_create1, EPOLL_CLOEXEC)));
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  if (set < 0) return -1;
  if (sys::epoll_ctl(set, EPOLL_CTL_ADD, bell, &event) != 0) return sys::close(set), -1;
  (void)sys::epoll_wait(set, &event, 1, 0);  // of rings from before
  return set;
}

}  // namespace

void ring(int fd, Socket& s) {
  using namespace socket_face;
  const KeepErrno keep;
  if (is_to_go(s)) {
    (void)answer_leaving(fd, s);
    if ((state_of(s.mine()) & kGone) != 0) return;  // that has rung
  }
  if (is_remote(s)) {
    (void)switch_sending(fd, s);
    return wake_remote(fd, s);
  }
  if (!ring_bell(s) && ((state_of(s.mine()) | state_of(s.theirs())) & (kLeaving | kGone)) == 0)
    break_off(fd, s, "the program has closed descriptors of CLAN's");
}

bool still_names(int fd, const Socket& s) {
  if (acquire(fd).get() == &s) return true;
  errno = EBADF;
  return false;
}

BellSleep::BellSleep(Socket& s) : s_(s) {
  // order: before reading the bell; a thread that gives it up takes it, then checks this
  s.bell_sleepers.fetch_add(1, std::memory_order_seq_cst);
  const int bell = s.bell.get();
  if (bell < 0) return;
  const KeepErrno keep;
  if (!in_borrowed_memory() && s.in_bell_set.try_lock()) {
    if (s.bell_set.get() < 0) s.bell_set.keep(make_set(bell));
    set_ = s.bell_set.get();
    is_kept_ = set_ >= 0;
    if (is_kept_) return;
    s.in_bell_set.unlock();
  }
  set_ = make_set(bell);
}

BellSleep::~BellSleep() {
  if (is_kept_) {
    s_.in_bell_set.unlock();
  } else if (set_ >= 0) {
    const KeepErrno keep;
    sys::close(set_);
  }
  s_.bell_sleepers.fetch_sub(1, std::memory_order_seq_cst);  // order: it watches no bell
}

nfds_t BellSleep::watch(pollfd* at) const {
  if (set_ < 0) return 0;
  *at = {set_, POLLIN, 0};
  return 1;
}

bool BellSleep::rung(const pollfd* at) const {
  if (set_ < 0 || at->revents == 0) return false;
  const KeepErrno keep;
  epoll_event told;
  (void)sys::epoll_wait(set_, &told, 1, 0);
  return true;
}

}  // namespace clan::preload

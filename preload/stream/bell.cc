#include "stream/bell.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <cerrno>
#include <cstring>

#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "demote/demote_on_request.h"
#include "demote/demote_steps.h"
#include "os/memory_owner.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/remote.h"
#include "state/socket.h"
#include "table/fd_table.h"
#include "table/internal_fds.h"
#include "tcp/aborted.h"
#include "tcp/doorbell.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

// Under `in_bell_set`.
bool has_set(Socket& s) {
  if (s.bell_set.get() >= 0) return true;
  const KeepErrno keep;
  const int set = move_high_to_spare(static_cast<int>(sys::call(SYS_epoll_create1, EPOLL_CLOEXEC)));
  if (set < 0) return false;
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  if (sys::epoll_ctl(set, EPOLL_CTL_ADD, s.bell.get(), &event) != 0) {
    sys::close(set);
    return false;
  }
  s.bell_set.keep(set);
  return true;
}

// A full pipe wakes, too. What is no pipe is a timer, and cannot be written.
bool ring_by(int bell) {
  const char byte = 0;
  if (sys::call(SYS_write, bell, &byte, 1) >= 0 || errno == EAGAIN) return true;
  const itimerspec at_once{{0, 0}, {0, 1}};
  return errno == EINVAL && sys::call(SYS_timerfd_settime, bell, 0, &at_once, nullptr) == 0;
}

}  // namespace

bool ring_bell(Socket& s) {
  if (s.others_bell.get() < 0 || is_to_go(s)) return false;
  if ((state_of(s.theirs()) & socket_face::kClosed) != 0) return true;
  const DeferSignals undisturbed;
  // Its number must not become another file's meanwhile.
  if (!s.ringing.try_lock()) return false;
  const KeepErrno keep;
  const int bell = s.others_bell.get();
  const bool rung = bell >= 0 && ring_by(bell);
  s.ringing.unlock();
  if (!rung) return false;
  // relaxed: for people to read
  s.mine().words[socket_face::kWakeups].fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool still_names(int fd, const Socket& s) {
  if (acquire(fd).get() == &s) return true;
  errno = EBADF;
  return false;
}

void ring_doorbell(int fd, Socket& s) {
  KeepErrno keep;
  auto& face = s.mine();
  if (is_to_go(s)) {
    (void)answer_leaving(fd, s);
    if ((state_of(face) & socket_face::kGone) != 0) return;  // else it rings as long as it may
  }
  if (is_remote(s)) {
    (void)switch_sending(fd, s);
    return wake_remote(fd, s);
  }
  // The number of doorbells since the switch distinguishes them from the application's bytes.
  // Another thread may just be sending by TCP: then the other end has not read all of TCP's, and
  // does not sleep for long for room.
  if (!switch_sending(fd, s)) return;
  if ((state_of(s.theirs()) & socket_face::kClosed) != 0) return;
  if (send_counted_doorbell(fd, s) > 0) {
    // relaxed: for people to read
    face.words[socket_face::kWakeups].fetch_add(1, std::memory_order_relaxed);
  } else if (errno != EAGAIN && !closed_under_us()) {
    note_error(s, errno);
  }
}

void ring(int fd, Socket& s, const Pipe::Done& done) {
  if (!done.must_ring || !done.by_bell || !ring_bell(s)) ring_doorbell(fd, s);
}

BellSleep::BellSleep(Socket& s, bool wanted) {
  if (!wanted || s.bell.get() < 0 || in_borrowed_memory() || !s.in_bell_set.try_lock()) return;
  if (has_set(s)) {
    s_ = &s;
  } else {
    s.in_bell_set.unlock();
  }
}

BellSleep::~BellSleep() {
  if (s_ != nullptr) s_->in_bell_set.unlock();
}

nfds_t BellSleep::watch(pollfd* at) const {
  if (s_ == nullptr) return 0;
  *at = {s_->bell_set.get(), POLLIN, 0};
  return 1;
}

bool BellSleep::rung(const pollfd* at) const {
  if (s_ == nullptr || at->revents == 0) return false;
  const KeepErrno keep;
  epoll_event told;
  (void)sys::epoll_wait(s_->bell_set.get(), &told, 1, 0);
  return true;
}

}  // namespace clan::preload

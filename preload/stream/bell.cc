#include "stream/bell.h"

#include <sys/epoll.h>
#include <sys/single_threaded.h>

#include <cerrno>

#include "clan/face/socket_face.h"
#include "demote/demote_on_request.h"
#include "os/memory_owner.h"
#include "os/real.h"
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

// What an event refers to.
constexpr std::uint32_t kBell = 0, kSocket = 1;

bool add(int set, int fd, std::uint32_t events, std::uint32_t name) {
  epoll_event event{};
  event.events = events;
  event.data.u32 = name;
  return sys::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0;
}

// A set of a bell, by edges, and of the socket unless `fd` is -1. -1: there is no room.
int make_set(int bell, int fd) {
  const int set = move_high_to_spare(static_cast<int>(sys::call(SYS_epoll_create1, EPOLL_CLOEXEC)));
  if (set < 0) return -1;
  epoll_event before;
  const bool added = add(set, bell, EPOLLIN | EPOLLET, kBell) &&
                     sys::epoll_wait(set, &before, 1, 0) >= 0 &&
                     (fd < 0 || add(set, fd, EPOLLIN | EPOLLRDHUP, kSocket));
  return added ? set : (sys::close(set), -1);
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

// A remote connection's thread may have to watch packets beside both.
BellSleep::BellSleep(Socket& s, int fd)
    : s_(s), has_socket_(fd >= 0 && __libc_single_threaded && !is_remote(s)) {
  // order: before reading the bell; a thread that gives it up takes it, then checks this
  s.bell_sleepers.fetch_add(1, std::memory_order_seq_cst);
  const int bell = s.bell.get();
  if (bell < 0) return;
  const KeepErrno keep;
  if (!has_socket_) fd = -1;
  BellSet& kept = has_socket_ ? s.receive_set : s.bell_set;
  if (kept.in_use.try_lock()) {
    if (kept.fd.get() < 0 && !in_borrowed_memory()) kept.fd.keep(make_set(bell, fd));
    set_ = kept.fd.get();
    if (set_ >= 0) {
      kept_ = &kept;
      return;
    }
    kept.in_use.unlock();
  }
  set_ = make_set(bell, fd);
}

BellSleep::~BellSleep() {
  if (kept_ != nullptr) {
    kept_->in_use.unlock();
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

BellSleep::Woken BellSleep::sleep(int timeout_ms) const {
  epoll_event told[2];
  Woken woken{real().epoll_pwait(set_, told, 2, timeout_ms, nullptr)};
  for (int k = 0; k < woken.rc; ++k)
    (told[k].data.u32 == kBell ? woken.rung : woken.by_socket) = true;
  if (woken.rc < 0 && errno != EINTR) {  // the program has closed the set past the library
    if (kept_ != nullptr) kept_->fd.keep(-1);
    woken = {1, false, true};
  }
  return woken;
}

}  // namespace clan::preload

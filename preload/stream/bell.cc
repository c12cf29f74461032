#include "stream/bell.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "clan/pipe.h"
#include "clan/socket_face.h"
#include "migrate/answer.h"
#include "migrate/demote_end.h"
#include "os/memory_owner.h"
#include "os/real.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/internal_fds.h"
#include "state/socket.h"
#include "stream/ring.h"

namespace clan::preload {
namespace {

enum Told : std::uint32_t { kOfSocket, kOfBell };

bool add(int set, int fd, std::uint32_t events, Told what) {
  epoll_event event{};
  event.events = events;
  event.data.u32 = what;
  return sys::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0;
}

// Under `in_bell_set`.
bool has_set(int fd, Socket& s) {
  if (s.bell_set.get() >= 0) return true;
  const KeepErrno keep;
  const int set = move_high_to_spare(static_cast<int>(sys::call(SYS_epoll_create1, EPOLL_CLOEXEC)));
  if (set < 0) return false;
  if (!add(set, fd, EPOLLIN | EPOLLRDHUP, kOfSocket) ||
      !add(set, s.bell.get(), EPOLLIN | EPOLLET, kOfBell)) {
    sys::close(set);
    return false;
  }
  s.bell_set.keep(set);
  return true;
}

short revents_of(const epoll_event* told, int n) {
  short revents = 0;
  for (int k = 0; k < n; ++k) {
    if (told[k].data.u32 == kOfSocket) revents = static_cast<short>(told[k].events);
  }
  return revents;
}

}  // namespace

bool ring_bell(Socket& s) {
  const int bell = s.others_bell.get();
  if (bell < 0 || is_to_go(s)) return false;
  if ((state_of(s.theirs()) & socket_face::kClosed) != 0) return true;
  const KeepErrno keep;
  const char byte = 0;
  // A full one wakes, too.
  if (sys::call(SYS_write, bell, &byte, 1) < 0 && errno != EAGAIN) return false;
  // relaxed: for people to read
  s.mine().words[socket_face::kWakeups].fetch_add(1, std::memory_order_relaxed);
  return true;
}

void ring(int fd, Socket& s, const Pipe::Done& done) {
  if (!done.must_ring || !done.by_bell || !ring_bell(s)) ring_doorbell(fd, s);
}

BellSleep::BellSleep(int fd, Socket& s, bool wanted) {
  if (!wanted || s.bell.get() < 0 || in_borrowed_memory() || !s.in_bell_set.try_lock()) return;
  if (has_set(fd, s)) {
    s_ = &s;
  } else {
    s.in_bell_set.unlock();
  }
}

BellSleep::~BellSleep() {
  if (s_ == nullptr) return;
  if (const int kept = s_->kept_open.take(); kept >= 0) sys::close(kept);
  s_->in_bell_set.unlock();
}

int BellSleep::sleep(pollfd* socket, int timeout_ms, const SinceEntry& since) const {
  epoll_event told[2];
  const int n = real().epoll_wait(descriptor(), told, 2, timeout_ms);
  socket->revents = revents_of(told, n);
  return n < 0 && errno == EINTR && !since.handled() ? 0 : n;
}

short BellSleep::answer() const {
  const KeepErrno keep;
  epoll_event told[2];
  return revents_of(told, sys::epoll_wait(descriptor(), told, 2, 0));
}

void keep_open_for_sleeper(int fd, Socket& s) {
  if (s.bell_set.get() < 0) return;
  if (s.in_bell_set.try_lock()) return s.in_bell_set.unlock();
  s.kept_open.keep(move_high(sys::fcntl(fd, F_DUPFD_CLOEXEC, 0)));
  if (!s.in_bell_set.try_lock()) return;
  if (const int kept = s.kept_open.take(); kept >= 0) sys::close(kept);  // it has gone meanwhile
  s.in_bell_set.unlock();
}

}  // namespace clan::preload

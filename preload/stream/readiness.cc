#include "stream/readiness.h"

#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "demote/demote_on_request.h"
#include "demote/resend.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "stream/ending.h"
#include "stream/going_back.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using namespace socket_face;

// Whether came_back() has something to do.
bool comes_back(const Socket& s) {
  const std::uint64_t theirs = state_of(s.theirs());
  return (theirs & kGone) != 0 && !s.reads_kernel() && !s.error_taken &&
         ((theirs & kSending) == 0 || (s.has_drained() && s.pipe.front() == PipeFront::kLeave));
}

short as_wanted(short ready, short wanted) {
  if ((ready & POLLIN) != 0) ready |= POLLRDNORM;
  if ((ready & POLLOUT) != 0) ready |= POLLWRNORM;
  return static_cast<short>(ready & (wanted | POLLERR | POLLHUP));
}

}  // namespace

bool is_due(const Socket& s) {
  return is_to_go(s) || owes_end(s) || comes_back(s) || (sends_tcp(s) && is_sent_again(s));
}

void do_due(int fd, Socket& s) {
  const DeferSignals undisturbed;
  if (is_to_go(s) || owes_end(s)) poll_tcp_socket(fd, s);
  if (comes_back(s)) (void)came_back(fd, s);
  if (sends_tcp(s)) (void)resends(fd, s);
}

short readiness(int fd, Socket& s, bool look) {
  const DeferSignals undisturbed;
  if (look && !is_to_go(s) && !owes_end(s)) look_at_tcp(fd, s);
  do_due(fd, s);
  return ready_now(fd, s, POLLIN | POLLOUT | POLLRDHUP);
}

short ready_now(int fd, Socket& s, short wanted) {
  const DeferSignals undisturbed;
  KeepErrno keep;
  const bool reads_kernel = s.reads_kernel();
  const bool by_tcp = sends_tcp(s);  // may have changed since
  short ready = 0;
  bool hung_up = false;
  if (reads_kernel || by_tcp) {
    pollfd p{fd,
             static_cast<short>((reads_kernel ? POLLIN | POLLRDHUP : 0) | (by_tcp ? POLLOUT : 0)),
             0};
    if (sys::poll(&p, 1, 0) > 0) ready = p.revents;
    if (by_tcp && is_sent_again(s)) ready &= static_cast<short>(~POLLOUT);
    if (reads_kernel) return as_wanted(ready, wanted);
    hung_up = (ready & POLLHUP) != 0;  // both ways shut, as far as TCP knows
    ready &= POLLOUT;
  }
  const bool follows = has_to_follow(s), gone = !follows && (s.kernel_end || s.kernel_error);
  if (!s.has_drained()) {
    std::size_t certain = 0;
    const Draining draining(s);
    if (!s.has_drained() && left_in_tcp(fd, s, &certain) != 0 && certain > 0 &&
        enough_bytes(s, certain)) {
      ready |= POLLIN;
    }
  }
  if (s.has_drained()) {
    const PipeFront front = s.pipe.front();
    const bool enough = front != PipeFront::kBytes || enough_bytes(s);
    if (front != PipeFront::kNothing && front != PipeFront::kLeave && enough) ready |= POLLIN;
    // As in TCP, the end shows before the bytes ahead of it are read.
    if (has_ended(s)) ready |= POLLRDHUP;
    if (front == PipeFront::kBroken) ready |= POLLERR | POLLHUP;
  }
  if (gone) {
    ready |= POLLIN | POLLRDHUP;
    if (reset_of(s) != 0) ready |= s.reset_told ? POLLHUP : POLLHUP | POLLERR;
  }
  if (s.shut_read.load(std::memory_order_relaxed)) ready |= POLLIN | POLLRDHUP;
  const bool ended_here = is_ended_here(s);
  if ((ended_here || hung_up) && ((ready & POLLRDHUP) != 0)) ready |= POLLHUP;
  const bool asks_room = (wanted & (POLLOUT | POLLWRNORM)) != 0;
  if (asks_room && !by_tcp && !follows &&
      (gone || ended_here || (s.pipe.writable() && !is_on_its_way(s))))
    ready |= POLLOUT;
  return as_wanted(ready, wanted);
}

bool prepare_sleep(Socket& s, short events) {
  const DeferSignals undisturbed;
  // Asks for both, even if the first fails: what lies there may not be what the caller wants.
  bool sleeps = true;
  if ((events & (POLLIN | POLLRDNORM | POLLRDHUP)) != 0 && !s.pipe.want_data()) {
    sleeps = !s.has_drained();
  }
  if ((events & (POLLOUT | POLLWRNORM)) != 0 && !sends_tcp(s) && !s.pipe.want_room())
    sleeps = false;
  return sleeps;
}

int bytes_to_read(int fd, Socket& s) {
  int n = 0;
  KeepErrno keep;
  if (s.reads_kernel()) return sys::ioctl(fd, FIONREAD, &n) == 0 ? n : 0;
  const std::uint64_t theirs = state_of(s.theirs());
  const Draining draining(s);
  bool all_of_tcp = s.has_drained();
  if (!all_of_tcp) {
    std::size_t certain = 0;
    const ssize_t left = left_in_tcp(fd, s, &certain);
    if (left > 0) n = static_cast<int>(certain);
    all_of_tcp = left >= 0 && static_cast<std::size_t>(left) == certain && (theirs & kSending) != 0;
  }
  if (!all_of_tcp) return n;
  // It also has what the peer has sent since it went back, behind the pipe's bytes.
  int queued = 0;
  if ((theirs & kGone) != 0 && sys::ioctl(fd, FIONREAD, &queued) == 0) n = queued;
  return n + static_cast<int>(std::min<std::uint64_t>(s.pipe.readable_bytes(), 1u << 30));
}

}  // namespace clan::preload

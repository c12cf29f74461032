#include "stream/ending.h"

#include <poll.h>
#include <time.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "clan/socket_face.h"
#include "far/bell.h"
#include "far/carrier.h"
#include "migrate/demote.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/socket.h"
#include "stream/doorbell.h"
#include "stream/poll_tcp.h"
#include "stream/stray_bytes.h"
#include "stream/tcp_prefix.h"

namespace clan::preload {
namespace {

using socket_face::kGone;
using socket_face::kReset;
using socket_face::kSending;
using socket_face::kSwallowed;

}  // namespace

void look_for_end(int fd, Socket& s) {
  pollfd p{fd, POLLIN | POLLRDHUP, 0};
  if (sys::poll(&p, 1, 0) <= 0) return;
  if (p.revents == POLLIN) {
    if (!doorbells_waiting(s)) (void)reset_for_strays(fd, s);
    return;
  }
  if (has_far_bells(s) && !is_all_there(s)) {  // the rest is on its way
    const timespec moment{0, 100'000};
    sys::call(SYS_nanosleep, &moment, nullptr);
    return;
  }
  if (leave_alone(fd, s)) return;  // the end of what is TCP's alone is TCP's to tell
  char byte;
  const ssize_t n = sys::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  note_end(fd, s, n);
  if (n <= 0) return;
  if ((p.revents & POLLERR) != 0) s.kernel_error.set();
  if ((p.revents & POLLRDHUP) != 0) note_end(fd, s, 0);
}

bool was_reset(const Socket& s) {
  if (!s.kernel_end && !s.kernel_error) return false;
  const std::uint64_t theirs = state_of(s.theirs());
  // A peer that sends by TCP may have half-closed, and read on.
  const bool died = (theirs & (kSending | kGone)) == kSending && s.pipe.unread_by_peer() > 0;
  // A peer that has gone, or never came, and read all doorbells, left other bytes unread.
  const bool by_tcp = ((theirs & kGone) != 0 || (theirs & socket_face::kAttached) == 0) &&
                      s.kernel_error &&
                      s.theirs().words[kSwallowed].load(std::memory_order_relaxed) ==
                          doorbells_of(s.mine(), std::memory_order_relaxed);
  return died || by_tcp || (theirs & kReset) != 0;
}

ssize_t ended(Socket& s) {
  if (was_reset(s) && s.reset_told.set_first()) {
    errno = ECONNRESET;
    return -1;
  }
  return 0;
}

ssize_t broken_pipe(int flags) {
  if ((flags & MSG_NOSIGNAL) == 0) {
    // To this thread, as the kernel does.
    sys::call(SYS_tgkill, ::getpid(), static_cast<pid_t>(sys::call(SYS_gettid)), SIGPIPE);
  }
  errno = EPIPE;
  return -1;
}

int take_error(int fd, Socket& s) {
  look_at_kernel(fd, s);
  int error = 0;
  socklen_t size = sizeof error;
  sys::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (s.reads_kernel() || s.kernel_says) return error;
  return was_reset(s) && s.reset_told.set_first() ? ECONNRESET : 0;
}

}  // namespace clan::preload

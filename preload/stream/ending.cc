#include "stream/ending.h"

#include <linux/bpf.h>
#include <poll.h>
#include <time.h>

#include <csignal>

#include "demote/demote.h"
#include "demote/demote_on_request.h"
#include "kernel/tcp.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/remote.h"
#include "stream/close.h"
#include "tcp/aborted.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using namespace socket_face;

// Takes SO_ERROR, which the kernel reports once.
int kernels_error(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  sys::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

void look_for_end(int fd, Socket& s) {
  pollfd p{fd, POLLIN | POLLRDHUP, 0};
  if (sys::poll(&p, 1, 0) <= 0) return;
  if (p.revents == POLLIN) {
    (void)reset_for_strays(fd, s);
    return;
  }
  if (!is_all_there(s)) {  // the rest is in flight
    const timespec moment{0, 100'000};
    sys::call(SYS_nanosleep, &moment, nullptr);
    return;
  }
  if (leave_alone(fd, s)) return;  // TCP alone reports its end
  char byte;
  const ssize_t n = sys::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  note_end(fd, s, n);
  if (n < 0) return;
  if (n > 0 && (p.revents & POLLRDHUP) != 0) note_end(fd, s, 0);
  if ((p.revents & POLLERR) == 0) return;
  if (n > 0 && (state_of(s.theirs()) & kGone) != 0) {
    s.kernel_error.set();  // TCP reports it to the application, after those bytes
  } else if (const int error = kernels_error(fd); error != 0) {
    note_error(s, error);  // after bytes, or after the end
  }
}

bool enough_bytes(const Socket& s, std::size_t of_tcp) {
  const auto low_water = static_cast<std::uint64_t>(s.low_water.load(std::memory_order_relaxed));
  return low_water <= 1 || of_tcp + s.pipe.readable_bytes() >= low_water || has_ended(s) ||
         !s.pipe.peer_has_room();
}

void poll_tcp_socket(int fd, Socket& s) {
  KeepErrno keep;
  const DeferSignals undisturbed;
  if (is_to_go(s)) (void)answer_leaving(fd, s);
  if (owes_end(s)) (void)tell_end(fd, s);
  look_at_tcp(fd, s);
}

void look_at_tcp(int fd, Socket& s) {
  KeepErrno keep;
  const DeferSignals undisturbed;
  if (s.reads_kernel()) return;
  if (!s.has_drained()) {
    const Draining draining(s);
    std::size_t certain = 0;
    (void)left_in_tcp(fd, s, &certain);
  }
  look_for_end(fd, s);
}

int reset_of(const Socket& s) {
  if (s.sent_to_nobody) return EPIPE;
  if (!s.kernel_end && !s.kernel_error) return 0;
  if (s.kernel_error && !s.error_taken) return ECONNRESET;    // TCP has it still
  const int error = s.error.load(std::memory_order_relaxed);  // relaxed: see note_error()
  if (error != 0 && error != ECONNRESET) return error;
  const bool ended = has_ended(s);
  if (ended && is_ended_here(s)) return 0;  // nothing is left to reset
  const std::uint64_t theirs = state_of(s.theirs());
  // A peer that sends by TCP may be half-closed, and still read.
  const bool died = (theirs & (kSending | kGone)) == kSending && s.pipe.unread_by_peer() > 0;
  if (!died && (theirs & kReset) == 0) return 0;
  return ended ? EPIPE : ECONNRESET;
}

int tell_reset(Socket& s) {
  const int error = reset_of(s);
  return error != 0 && s.reset_told.set_first() ? error : 0;
}

int tcp_state(int fd, Socket& s) {
  poll_tcp_socket(fd, s);
  const int kernels = tcp_state_of(fd);
  if (s.reads_kernel()) return kernels;
  const bool ours = is_ended_here(s) || kernels == BPF_TCP_FIN_WAIT1 ||
                    kernels == BPF_TCP_FIN_WAIT2 || kernels == BPF_TCP_CLOSING;
  const bool theirs = has_ended(s) || s.kernel_end || s.kernel_error;
  if (reset_of(s) != 0 || (ours && theirs)) return BPF_TCP_CLOSE;
  if (theirs) return BPF_TCP_CLOSE_WAIT;
  return ours ? BPF_TCP_FIN_WAIT2 : kernels;
}

int name_of_peer(int fd, Socket& s, sockaddr* address, socklen_t* size) {
  if (tcp_state(fd, s) != BPF_TCP_CLOSE)
    return static_cast<int>(sys::call(SYS_getpeername, fd, address, size));
  errno = ENOTCONN;
  return -1;
}

ssize_t ended(Socket& s) {
  const int error = reset_of(s);
  // After the peer's end, recv reports only that.
  if (error == 0 || error == EPIPE || has_ended(s) || !s.reset_told.set_first()) return 0;
  errno = error;
  return -1;
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
  poll_tcp_socket(fd, s);
  return s.reads_kernel() ? kernels_error(fd) : tell_reset(s);
}

}  // namespace clan::preload

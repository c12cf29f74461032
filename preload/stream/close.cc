#include "stream/close.h"

#include <linux/bpf.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "clan/face/socket_face.h"
#include "demote/demote.h"
#include "demote/demote_on_request.h"
#include "demote/demote_steps.h"
#include "demote/resend.h"
#include "os/real.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/remote.h"
#include "state/socket.h"
#include "stream/bell.h"
#include "stream/ending.h"
#include "stream/glance.h"
#include "stream/going_back.h"
#include "stream/poll_tcp.h"
#include "stream/readiness.h"
#include "table/open_file.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using socket_face::kEnding;
using socket_face::kGone;
using socket_face::kLeaving;
using socket_face::kReset;
using socket_face::kSending;

// Says that nothing more is sent, or leaves that to later checks of the socket. False: TCP is to
// say it, now.
bool end_by_pipe(int fd, Socket& s) {
  const Moment moment;
  do {
    // Where the other end has not come in, it finds when it comes that we have gone.
    const bool by_tcp = (state_of(s.mine()) & kGone) != 0 || leave_alone(fd, s);
    if (by_tcp && !resends(fd, s)) return false;
    if (tell_end(fd, s)) return true;
    if (is_to_go(s)) poll_tcp_socket(fd, s);
    nap();
  } while (!moment.over());
  add_state(s.mine(), kEnding);
  // It may be sent again by a process that looked for that before.
  if (!resends(fd, s) && (state_of(s.mine()) & kGone) != 0) return false;
  note_going_back(s);
  return true;
}

}  // namespace

bool tell_end(int fd, Socket& s) {
  KeepErrno keep;
  if ((state_of(s.mine()) & kGone) != 0) {
    if (resends(fd, s)) return false;  // behind what is being sent again
    end_by_tcp(fd, s);
    return true;
  }
  if (!switch_sending(fd, s)) return false;
  const Pipe::Done done = s.pipe.end_sending();
  if (done.must_ring) ring(fd, s);
  const auto& sender = s.pipe.page().ends[s.pipe.end()].sender;
  // Broken: its end is reported in other ways.
  if (sender.ended.load(std::memory_order_relaxed) != 1 && done.err != EPROTO) return false;
  // order: a bit by itself, in a word whose others publish
  s.mine().words[socket_face::kState].fetch_and(~std::uint64_t{kEnding}, std::memory_order_acq_rel);
  return true;
}

// What the kernel does at the last close is a matter of the open file, whichever process closes
// last.
bool say_linger(int fd, Socket& s) {
  linger lingers{};
  socklen_t size = sizeof lingers;
  sys::getsockopt(fd, SOL_SOCKET, SO_LINGER, &lingers, &size);
  const bool at_once = lingers.l_onoff != 0 && lingers.l_linger == 0;
  if (at_once) add_state(s.mine(), kReset);
  return at_once;
}

void shared_close(int fd, Socket& s, bool others) {
  KeepErrno keep;
  const bool at_once = say_linger(fd, s);
  // One to another host, when the process ended.
  if ((state_of(s.mine()) & socket_face::kClosed) != 0) return;
  // relaxed: of this process, or of another one
  const std::uint64_t mover = s.mine().words[socket_face::kProcess].load(std::memory_order_relaxed);
  if (static_cast<pid_t>(mover >> 32) == ::getpid()) add_state(s.mine(), socket_face::kMoverClosed);
  if (others) return;  // they go on
  // TCP answers bytes that nobody will read with a reset, and so must we.
  const bool unread = bytes_to_read(fd, s) > 0 && !s.kernel_end;
  const std::uint64_t reset = unread ? std::uint64_t{kReset} : 0;
  add_state(s.mine(), socket_face::kClosed | reset);
  poll_tcp_socket(fd, s);
  // The kernel's word comes in a moment; a peer that reads the pipe sees this one at once, behind
  // all bytes. Not while a call is under way, which goes on until it returns.
  if (!unread && !at_once && s.refs.load(std::memory_order_relaxed) == 1 &&
      (state_of(s.mine()) & (kSending | kGone)) == kSending &&
      (state_of(s.theirs()) & kLeaving) == 0) {
    (void)s.pipe.end_sending();
  }
  wake_remote(fd, s);
  if (unread) {
    const linger now{1, 0};
    sys::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
}

int shared_shutdown(int fd, Socket& s, int how) {
  const DeferSignals undisturbed;
  const bool connected = tcp_state(fd, s) != BPF_TCP_CLOSE;
  if (how != SHUT_WR) s.shut_read.store(true, std::memory_order_relaxed);
  if (how != SHUT_RD && connected && !end_by_pipe(fd, s)) {
    // Our bytes go by TCP, and so does their end.
    tell_sets(s);
    return real().shutdown(fd, how);
  }
  // relaxed: our own word, or that of a thread that does the same
  if (s.shut_read.load(std::memory_order_relaxed) && is_ended_here(s))
    add_state(s.mine(), socket_face::kShut);
  // Threads that sleep on this descriptor here have to notice.
  if (how != SHUT_WR) (void)real().shutdown(fd, SHUT_RD);
  note_going_back(s);  // sets check it again, and what holds is an edge
  if (connected) return 0;
  errno = ENOTCONN;
  return -1;
}

}  // namespace clan::preload

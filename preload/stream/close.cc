#include "stream/close.h"

#include <linux/bpf.h>

#include <cerrno>
#include <cstdint>

#include "clan/face/socket_face.h"
#include "demote/demote.h"
#include "demote/demote_on_request.h"
#include "demote/resend.h"
#include "os/real.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/remote.h"
#include "stream/bell.h"
#include "stream/ending.h"
#include "stream/going_back.h"
#include "stream/readiness.h"
#include "table/open_file.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using namespace socket_face;

// Announces the end in the pipe, or leaves that to later checks. False: TCP has to, now.
bool end_by_pipe(int fd, Socket& s) {
  const Moment moment;
  do {
    // A peer that enters later finds that we have gone.
    const bool by_tcp = (state_of(s.mine()) & kGone) != 0 || leave_alone(fd, s);
    if (by_tcp && !resends(fd, s)) return false;
    if (tell_end(fd, s)) return true;
    if (is_to_go(s)) poll_tcp_socket(fd, s);
    nap();
  } while (!moment.over());
  add_state(s.mine(), kEnding);
  // A process that checked before this bit was set may have finished sending again.
  if (!resends(fd, s) && (state_of(s.mine()) & kGone) != 0) return false;
  note_going_back(s);
  return true;
}

}  // namespace

bool tell_end(int fd, Socket& s) {
  KeepErrno keep;
  if ((state_of(s.mine()) & kGone) != 0) {
    if (resends(fd, s)) return false;  // after what is being sent again
    end_by_tcp(fd, s);
    return true;
  }
  if (!switch_sending(fd, s)) return false;
  const Pipe::Done done = s.pipe.end_sending();
  if (done.must_ring) ring(fd, s);
  const auto& sender = s.pipe.page().ends[s.pipe.end()].sender;
  // EPROTO: a broken pipe reports its end otherwise.
  if (sender.ended.load(std::memory_order_relaxed) != 1 && done.err != EPROTO) return false;
  // order: an independent bit in a word whose other bits publish
  s.mine().words[kState].fetch_and(~std::uint64_t{kEnding}, std::memory_order_acq_rel);
  return true;
}

// The open file decides what the kernel does at the last close, in any process.
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
  // A remote one was closed when the process ended.
  if ((state_of(s.mine()) & kClosed) != 0) return;
  // relaxed: any process of this end may have written it
  const std::uint64_t mover = s.mine().words[kProcess].load(std::memory_order_relaxed);
  if (static_cast<pid_t>(mover >> 32) == ::getpid()) add_state(s.mine(), kMoverClosed);
  if (others) return;  // they go on
  // Like TCP, resets if bytes will stay unread.
  const bool unread = bytes_to_read(fd, s) > 0 && !s.kernel_end;
  const std::uint64_t reset = unread ? std::uint64_t{kReset} : 0;
  add_state(s.mine(), kClosed | reset);
  poll_tcp_socket(fd, s);
  // The kernel notifies soon; a reader of the pipe sees this record at once, after all bytes. Not
  // during another thread's call, which finishes first.
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
    tell_sets(s);
    return real().shutdown(fd, how);
  }
  // relaxed: our own word, or a concurrent shutdown's
  if (s.shut_read.load(std::memory_order_relaxed) && is_ended_here(s)) add_state(s.mine(), kShut);
  // Wakes threads that sleep on this descriptor here.
  if (how != SHUT_WR) (void)real().shutdown(fd, SHUT_RD);
  note_going_back(s);  // sets check it again, and report an edge
  if (connected) return 0;
  errno = ENOTCONN;
  return -1;
}

}  // namespace clan::preload

#include "demote/demote_on_request.h"

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "clan/detail/clock.h"
#include "clan/detail/log.h"
#include "clan/detail/words.h"
#include "clan/face/pipe.h"
#include "clan/face/reasons.h"
#include "clan/face/socket_face.h"
#include "demote/demote_steps.h"
#include "demote/resend.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/hooks.h"
#include "state/remote.h"
#include "state/socket.h"
#include "table/open_file.h"
#include "tcp/call_gate.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using socket_face::kGone;
using socket_face::kLeaving;
using socket_face::kResends;
using socket_face::kSending;
using socket_face::kState;

// A direction that has not switched never will: its bytes are TCP's as they were.
bool stays_unswitched(int fd, Socket& s) {
  auto& state = s.mine().words[kState];
  // PAIR face.state: the end that switches says so in the same word
  for (std::uint64_t now = state.load(std::memory_order_acquire); (now & kSending) == 0;) {
    if (!state.compare_exchange_weak(now, now | kGone, std::memory_order_seq_cst)) continue;
    if ((now & socket_face::kEnding) != 0) end_by_tcp(fd, s);
    ring_or_tell_host(fd, s);
    return true;
  }
  return false;
}

// The other end has said what it has not read; or will not, or need not.
bool has_said_all(int fd, const Socket& s) {
  if ((state_of(s.mine()) & kSending) == 0 || (state_of(s.theirs()) & kLeaving) == 0) return true;
  // PAIR face.given
  const std::uint64_t word = words::load_acquire(s.theirs().words[socket_face::kGivenBack]);
  return word != 0 || closed(fd);
}

// go() is to be done, now or all the same.
bool can_go(int fd, const Socket& s, std::uint64_t wanted_ns) {
  return monotonic_ns() - wanted_ns > kForOtherEndNs || has_said_all(fd, s);
}

// Nobody else sends meanwhile. The last record is there.
void go_and_resend(int fd, Socket& s, std::int32_t us) {
  OpenFileState::hand_on(s.open_file().sends, us, resender_id());
  // PAIR preload.resending: publishes whose it is
  s.resending.store(true, std::memory_order_release);
  add_state(s.mine(), kResends);
  say_goodbye(fd, s);
  resend(fd, s);
}

}  // namespace

bool go_now(int fd, Socket& s) {
  return (state_of(s.mine()) & kGone) != 0 || (has_said_all(fd, s) && go(fd, s));
}

bool go(int fd, Socket& s) {
  if ((state_of(s.mine()) & kGone) != 0 || stays_unswitched(fd, s)) return true;
  // The other host has to know how much of TCP's comes before the pipe.
  // PAIR preload.switch_known
  if (is_remote(s) && !words::load_acquire(s.switch_known)) return false;
  auto& sends = s.open_file().sends;
  const std::int32_t us = closer_id();
  auto gone = [&] { return (state_of(s.mine()) & kGone) != 0; };  // perhaps by another process
  // No call that is counted is in the kernel: it steps back, or was killed.
  for (std::uint32_t turn = 0; !OpenFileState::try_close_over(sends, us); ++turn) {
    if (!await_gate(sends, turn)) return (void)resends(fd, s), gone();
  }
  if (!gone() && (state_of(s.mine()) & kSending) == 0) {  // a switch has been taken back
    OpenFileState::open(sends, us);
    return go(fd, s);
  }
  // A process that was killed here may have done any of this: each step may be made again.
  const bool later = !gone() && put_last_record(s).err == EDEADLK;
  if (gone() || later) {
    OpenFileState::open(sends, us);
    return gone();
  }
  // PAIR face.given
  const std::uint64_t given = words::load_acquire(s.theirs().words[socket_face::kGivenBack]);
  if ((state_of(s.theirs()) & kLeaving) != 0 && given != socket_face::kReadsOn) {
    go_and_resend(fd, s, us);
    return true;
  }
  say_goodbye(fd, s);
  OpenFileState::open(sends, us);
  settle(s);
  return gone();
}

bool go_or_later(int fd, Socket& s) {
  std::uint64_t wanted = s.answer_wanted_ns.load(std::memory_order_relaxed);
  const bool again = wanted != 0;
  if (!again) wanted = monotonic_ns();
  for (const Moment moment;;) {
    if (can_go(fd, s, wanted) && go(fd, s)) return true;
    // relaxed: see answers_later()
    s.answer_wanted_ns.store(wanted, std::memory_order_relaxed);
    if (again || moment.over()) return false;
    nap();
  }
}

bool answer_leaving(int fd, Socket& s) {
  KeepErrno keep;
  // relaxed: as in go_or_later()
  const std::uint64_t wanted = s.answer_wanted_ns.load(std::memory_order_relaxed);
  if (wanted != 0 && !can_go(fd, s, wanted)) return false;
  const DeferSignals undisturbed;
  // Another thread is at it. If that has to wait, it may yet say "later".
  // relaxed: see answers_later()
  if (!s.moving.try_lock()) return s.answer_wanted_ns.load(std::memory_order_relaxed) == 0;
  const bool goes = (state_of(s.mine()) & kGone) == 0 && go_or_later(fd, s);
  if (goes) {
    CLAN_DEBUG("fd %d goes back to TCP", fd);
    if ((state_of(s.theirs()) & kLeaving) != 0) say_why(fd, s, reasons::Why::kTakenBack);
    settle(s);  // what is read may be TCP's already
  }
  s.moving.unlock();
  return goes || (state_of(s.mine()) & kGone) != 0;
}

bool came_back(int fd, Socket& s) {
  if (s.reads_kernel()) return true;
  const std::uint64_t theirs = state_of(s.theirs());
  // The kernel reports an error once, and this library has taken it; behind it nothing comes by
  // TCP.
  if ((theirs & kGone) == 0 || s.error_taken) return false;
  KeepErrno keep;
  if ((theirs & kLeaving) != 0 && (state_of(s.mine()) & kGone) == 0 && !answer_leaving(fd, s))
    return false;
  if ((theirs & kSending) != 0) {
    if (!s.has_drained() || s.pipe.front() != PipeFront::kLeave) return false;
  }
  read_kernel(fd, s);
  settle(s);
  say_why(fd, s, reasons::Why::kTakenBack);
  return true;
}

}  // namespace clan::preload

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
#include "demote/handback.h"
#include "demote/resend.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/hooks.h"
#include "state/remote.h"
#include "state/resend_words.h"
#include "state/socket.h"
#include "table/open_file.h"
#include "tcp/aborted.h"
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

// Bytes of this end that it holds cannot be had. This end does the other one's part: the
// application gets a reset, not an end. TCP is reset before kGone, behind which others send by it:
// the other end's program would read on behind what is missing.
void lose(int fd, Socket& s) {
  break_off(fd, s,
            "its peer goes back to TCP, and holds bytes of this end that cannot be had (another "
            "pid namespace?)");
  set_gone(s.mine());
}

// Nobody else sends meanwhile. Its last record is there. If this process is killed another one
// takes it over (take_resend_over()): what is done before kGone may be done twice.
void go_alone(int fd, Socket& s, const HandedBack& given, std::int32_t us) {
  // PAIR preload.resending: publishes whose it is
  s.resending.store(true, std::memory_order_release);
  if (given.lost) {
    lose(fd, s);
    return resent(s, us);
  }
  note_given(fd, s, given.memfd);
  add_state(s.mine(), kResends);
  say_goodbye(fd, s);
  resend(fd, s, given.memfd, us);
}

}  // namespace

bool go_now(int fd, Socket& s) {
  return (state_of(s.mine()) & kGone) != 0 || (has_said_all(fd, s) && go(fd, s));
}

bool go(int fd, Socket& s) {
  if ((state_of(s.mine()) & kGone) != 0 || stays_unswitched(fd, s)) return true;
  // The other host has to know how much of TCP's comes before the pipe.
  // PAIR preload.parked
  if (is_remote(s) && !words::load_acquire(s.remote_parked)) return false;
  auto& sends = s.open_file().sends;
  const std::int32_t us = closer_id(), resender = OpenFileState::kSendsAgain | us;
  // No call that is counted is in the kernel: it steps back, or was killed.
  for (std::uint32_t turn = 0; !OpenFileState::try_close_over(sends, us); ++turn) {
    HandedBack given;
    if (take_resend_over(s, resender, &given)) return go_alone(fd, s, given, resender), true;
    if (!await_gate(sends, turn)) return false;
  }
  auto gone = [&] { return (state_of(s.mine()) & kGone) != 0; };  // perhaps by another process
  if (!gone() && (state_of(s.mine()) & kSending) == 0) {          // a switch has been taken back
    OpenFileState::open(sends, us);
    return go(fd, s);
  }
  // A process that was killed here may have done any of this: each step may be made again.
  const bool later = !gone() && put_last_record(s).err == EDEADLK;
  if (gone() || later) {
    OpenFileState::open(sends, us);
    return gone();
  }
  const bool answers = (state_of(s.theirs()) & kLeaving) != 0;
  const HandedBack given = answers ? given_back(s) : HandedBack{};
  // The other end, which leaves for a program that knows TCP alone, may not have read all that this
  // one has put into the pipe before its last record, or may have taken some out of TCP.
  if (answers && given.word != kDone && given.word != kReadsOn) {
    (void)hand_resend_on(sends, us, resender);
    go_alone(fd, s, given, resender);
    return true;
  }
  // Sending again what it still reads in the pipe would overtake that.
  if (given.word != kDone) say_goodbye(fd, s);
  if (given.memfd >= 0) sys::close(given.memfd);
  OpenFileState::open(sends, us);
  settle(s);
  return gone() || given.word == kDone;
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
    if (!take_parked_byte_back(fd, s) || s.error_taken) return false;
  }
  read_kernel(fd, s);
  settle(s);
  say_why(fd, s, reasons::Why::kTakenBack);
  return true;
}

}  // namespace clan::preload

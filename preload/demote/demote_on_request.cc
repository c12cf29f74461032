#include "demote/demote_on_request.h"

#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include <cerrno>

#include "clan/detail/log.h"
#include "clan/detail/words.h"
#include "clan/face/reasons.h"
#include "demote/resend.h"
#include "kernel/tcp.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/hooks.h"
#include "state/remote.h"
#include "table/open_file.h"
#include "tcp/call_gate.h"
#include "tcp/ring.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using namespace socket_face;

// Rings the peer, or the component in its place.
void ring_or_tell_host(int fd, Socket& s) {
  is_remote(s) ? wake_remote(fd, s) : (void)ring_bell(s);
}

// Puts this end's last record behind all bytes. EDEADLK: not yet. EPIPE: half-closed earlier, and
// that record is the last.
Pipe::Done put_last_record(Socket& s) {
  const bool ends = (state_of(s.mine()) & kEnding) != 0;
  return ends ? s.pipe.end_sending() : s.pipe.leave();
}

// Sets kGone after that record, and rings the peer. Can be repeated for a process killed here.
void say_goodbye(int fd, Socket& s) {
  add_state(s.mine(), kGone);
  ring_or_tell_host(fd, s);
}

// A direction that has not switched never will: all its bytes are on TCP.
bool stays_unswitched(int fd, Socket& s) {
  auto& state = s.mine().words[kState];
  // PAIR face.state: a switch sets kSending in the same word
  for (std::uint64_t now = state.load(std::memory_order_acquire); (now & kSending) == 0;) {
    if (!state.compare_exchange_weak(now, now | kGone, std::memory_order_seq_cst)) continue;
    if ((now & kEnding) != 0) end_by_tcp(fd, s);
    ring_or_tell_host(fd, s);
    return true;
  }
  return false;
}

// The peer has said what it has not read, will not, or need not.
bool has_said_all(int fd, const Socket& s) {
  if ((state_of(s.mine()) & kSending) == 0 || (state_of(s.theirs()) & kLeaving) == 0) return true;
  // PAIR face.given
  const std::uint64_t word = words::load_acquire(s.theirs().words[kGivenBack]);
  return word != 0 || closed(fd);
}

// go() is to be done, or its time is up.
bool can_go(int fd, const Socket& s, std::uint64_t wanted_ns) {
  return monotonic_ns() - wanted_ns > kForOtherEndNs || has_said_all(fd, s);
}

// Called with `sends` closed and the last record in the pipe.
void go_and_resend(int fd, Socket& s, std::int32_t us) {
  OpenFileState::hand_on(s.open_file().sends, us, resender_id());
  // PAIR preload.resending: publishes whose it is
  s.resending.store(true, std::memory_order_release);
  add_state(s.mine(), kResends);
  say_goodbye(fd, s);
  resend(fd, s);
}

}  // namespace

void nap() {
  timespec ts{0, 50'000};
  sys::call(SYS_nanosleep, &ts, nullptr);
}

bool closed(int fd) {
  pollfd p{fd, POLLRDHUP, 0};
  return sys::poll(&p, 1, 0) > 0 && !other_end_is_open(fd);
}

void end_by_tcp(int fd, Socket& s) {
  sys::call(SYS_shutdown, fd, SHUT_WR);
  // order: an independent bit in a word whose other bits publish
  s.mine().words[kState].fetch_and(~std::uint64_t{kEnding}, std::memory_order_acq_rel);
}

void settle(Socket& s) {
  // PAIR preload.resending: Dekker. One thread reads the kernel again, one has sent all again; each
  // says so before it checks here
  const bool back =
      s.back_in.load(std::memory_order_seq_cst) && !s.resending.load(std::memory_order_seq_cst);
  if (!back || (state_of(s.mine()) & kGone) == 0) return;
  OpenFileState& slot = s.open_file();
  // PAIR preload.gate: after kGone, so that no other process sends again unnoticed
  if (OpenFileState::is_resend(words::load_acquire(slot.sends))) {
    s.resending.store(true, std::memory_order_seq_cst);  // PAIR preload.resending: checked later
    return;
  }
  slot.pin();
  slot.moved.store(0, std::memory_order_relaxed);  // relaxed: a word alone
  s.become(Socket::State::kKernel);
}

void read_kernel(int fd, Socket& s) {
  if (const int low_water = s.low_water.load(std::memory_order_relaxed); low_water > 1)
    sys::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low_water, sizeof low_water);
  // PAIR preload.back_in: SO_RCVLOWAT is set again. seq_cst: settle() reads `resending` next
  s.back_in.store(true, std::memory_order_seq_cst);
}

void tell_sets(Socket& s) {
  if (s.is_watched() && !s.shared()) hooks.demoted(s);
}

bool go_now(int fd, Socket& s) {
  return (state_of(s.mine()) & kGone) != 0 || (has_said_all(fd, s) && go(fd, s));
}

bool go(int fd, Socket& s) {
  if ((state_of(s.mine()) & kGone) != 0 || stays_unswitched(fd, s)) return true;
  // The other host has to know where TCP's bytes end.
  // PAIR preload.switch_known
  if (is_remote(s) && !words::load_acquire(s.switch_known)) return false;
  auto& sends = s.open_file().sends;
  const std::int32_t us = closer_id();
  auto gone = [&] { return (state_of(s.mine()) & kGone) != 0; };  // perhaps by another process
  // No counted call is in the kernel: it steps back, or was killed.
  for (std::uint32_t turn = 0; !OpenFileState::try_close_over(sends, us); ++turn) {
    if (!await_gate(sends, turn)) return (void)resends(fd, s), gone();
  }
  if (!gone() && (state_of(s.mine()) & kSending) == 0) {  // a switch has been taken back
    OpenFileState::open(sends, us);
    return go(fd, s);
  }
  // A killed process may have done any of this: each step can be repeated.
  const bool later = !gone() && put_last_record(s).err == EDEADLK;
  if (gone() || later) {
    OpenFileState::open(sends, us);
    return gone();
  }
  // PAIR face.given
  const std::uint64_t given = words::load_acquire(s.theirs().words[kGivenBack]);
  if ((state_of(s.theirs()) & kLeaving) != 0 && given != kReadsOn) {
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
  // Another thread is at it; if that has to wait, it may still say "later".
  // relaxed: see answers_later()
  if (!s.moving.try_lock()) return s.answer_wanted_ns.load(std::memory_order_relaxed) == 0;
  const bool goes = (state_of(s.mine()) & kGone) == 0 && go_or_later(fd, s);
  if (goes) {
    CLAN_DEBUG("fd %d goes back to TCP", fd);
    if ((state_of(s.theirs()) & kLeaving) != 0) say_why(fd, s, reasons::Why::kTakenBack);
    settle(s);  // its reads may be TCP's already
  }
  s.moving.unlock();
  return goes || (state_of(s.mine()) & kGone) != 0;
}

bool came_back(int fd, Socket& s) {
  if (s.reads_kernel()) return true;
  const std::uint64_t theirs = state_of(s.theirs());
  // The kernel reports an error once, and the library has taken it: nothing follows by TCP.
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

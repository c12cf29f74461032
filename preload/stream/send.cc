#include "stream/send.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "clan/face/wait.h"
#include "demote/demote.h"
#include "demote/demote_on_request.h"
#include "demote/resend.h"
#include "os/real.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "state/remote.h"
#include "state/ring_memory.h"
#include "stream/bell.h"
#include "stream/blocking.h"
#include "stream/ending.h"
#include "stream/going_back.h"
#include "stream/iovec_slice.h"
#include "stream/remote_sleep.h"
#include "table/open_file.h"
#include "table/unseen_sets.h"
#include "tcp/aborted.h"
#include "tcp/call_gate.h"
#include "tcp/ring.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using namespace socket_face;

constexpr int kOfTcpAlone = MSG_OOB | MSG_ZEROCOPY;  ///< sent once this end is back on TCP
constexpr int kLongestNapMs = 16;                    ///< of a send that nobody wakes for room
constexpr int kLongestSleepMs = 100;                 ///< of any other

// Whether the end of sending by kLeave is honest. False: the connection is reset.
bool is_left_rightly(int fd, Socket& s) {
  const std::uint64_t own = state_of(s.mine());
  if (((own | state_of(s.theirs())) & kLeaving) != 0 || (own & kGone) != 0) return true;
  break_off(fd, s, "its pipe says what cannot be");
  return false;
}

// Now and then asks the kernel whether the peer lives. True: it has.
bool ask_at_times(int fd, Socket& s) {
  if (!check_due(s)) return false;
  KeepErrno keep;
  pollfd p{fd, POLLRDHUP, 0};
  if (sys::poll(&p, 1, 0) > 0 && p.revents != 0) poll_tcp_socket(fd, s);
  return true;
}

class Sending : StreamCall {
 public:
  // `sent`: bytes already in the pipe.
  Sending(int fd, Socket& s, const iovec* buffers, int count, int flags, std::size_t sent = 0)
      : StreamCall(fd, s, buffers, count, flags, SO_SNDTIMEO, sent) {}

  ssize_t run() {
    for (;;) {
      StepResult step = by_tcp_alone();
      if (step.goes_on()) step = before_pipe();
      if (step.goes_on()) step = by_pipe();
      if (step.goes_on()) step = wait();
      if (step.is_answer()) return step.answer();
    }
  }

 private:
  const PipePage::Sender& sender() const { return s_.pipe.page().ends[s_.pipe.end()].sender; }

  // The connection is on its way back to TCP. True: try again. False, with errno: the call is over.
  bool going_back() {
    if (waits()) return nap();
    note_going_back(s_);
    errno = EAGAIN;
    return false;
  }

  // Sends by TCP before the switch, after going back, and for flags of TCP alone.
  StepResult by_tcp_alone() {
    const std::uint64_t own = state_of(s_.mine());
    const bool gone = (own & kGone) != 0;
    if ((own & kEnding) != 0) return refused();
    if ((flags_ & kOfTcpAlone) != 0 && !gone) {
      poll_tcp_socket(fd_, s_);
      return (state_of(s_.mine()) & kGone) != 0 || going_back() ? StepResult::again()
                                                                : StepResult::over(-1);
    }
    // Only a call that waits sends its rest by TCP.
    if (gone && done_ > 0 && (!waits() || time_left_ms(deadline(), 1) == 0)) return all();
    if (gone && resends(fd_, s_)) return going_back() ? StepResult::again() : failed_with();
    if (!gone && switch_sending(fd_, s_)) return StepResult::next();
    bool shut = false;
    const StepResult step = by_tcp(gone, &shut);
    if (!step.goes_on()) return step;
    if (shut) return going_back() ? StepResult::again() : failed_with();
    return wait_for_tcp();
  }

  // Counted, so that no switch happens meanwhile. `shut`: the counter stays closed.
  StepResult by_tcp(bool gone, bool* shut) {
    OpenFileState& slot = s_.open_file();
    const bool may_sleep = waits();
    const OpenFileState::UnderWay counted(slot.sends);
    if (!counted) {
      if (await_gate(slot.sends, turns_++)) return StepResult::again();
      *shut = true;
      return StepResult::next();
    }
    if (gone) return by_kernel();
    if ((state_of(s_.mine()) & kSending) != 0) return StepResult::again();
    IovecSlice part(buffers_, count_, done_);
    const msghdr message = message_of(part.buffers, part.count);
    const long n = sys::call(SYS_sendmsg, fd_, &message,
                             flags_ | MSG_DONTWAIT | (done_ > 0 ? MSG_NOSIGNAL : 0));
    // Room, in TCP or by then in the pipe, will be an edge.
    if (n < static_cast<long>(wanted_ - done_)) s_.full.fetch_add(1, std::memory_order_relaxed);
    if (n < 0 && (errno != EAGAIN || !may_sleep)) return failed_with();
    if (n > 0) {
      done_ += static_cast<std::size_t>(n);
      // relaxed: read behind the closed gate
      slot.sent.fetch_add(static_cast<std::uint64_t>(n), std::memory_order_relaxed);
      give_up_on_peer(fd_, s_);
    }
    return done_ == wanted_ || !may_sleep ? all() : StepResult::next();
  }

  StepResult by_kernel() {
    if (done_ > 0) return rest_by_kernel();
    const msghdr message = message_of(buffers_, count_);
    const AllowSignals here;
    return StepResult::over(real().sendmsg(fd_, &message, flags_));
  }

  StepResult rest_by_kernel() {
    const IovecSlice part(buffers_, count_, done_);
    const msghdr message = message_of(part.buffers, part.count);
    const AllowSignals here;
    const ssize_t n = real().sendmsg(fd_, &message, flags_ | MSG_NOSIGNAL);
    if (n > 0) done_ += static_cast<std::size_t>(n);
    const bool is_part = n > 0 && static_cast<std::size_t>(n) == total(part.buffers, part.count);
    return is_part && done_ < wanted_ ? StepResult::again() : all();
  }

  // Not in the kernel's send(): before the peer reads, another thread here may have to ring for
  // room, and to switch for that.
  StepResult wait_for_tcp() {
    const int timeout = time_left_ms(deadline(), kLongestNapMs);
    if (timeout == 0) {
      if (done_ == 0) errno = EAGAIN;
      return failed_with();
    }
    pollfd p{fd_, POLLOUT, 0};
    if (sleep_in_send(&p, timeout, since_) < 0 && !goes_on(done_, deadline_, since_))
      return failed_with();
    return StepResult::again();
  }

  // Checks that the peer is still there.
  StepResult before_pipe() {
    // relaxed: a look
    if (sender().ended.load(std::memory_order_relaxed) == 1) {
      poll_tcp_socket(fd_, s_);
      return refused();
    }
    const std::uint64_t theirs = state_of(s_.theirs());
    const bool reads_no_more = (theirs & (kClosed | kShut)) != 0;
    if (((state_of(s_.mine()) | theirs) & kLeaving) != 0 || reads_no_more) {
      poll_tcp_socket(fd_, s_);
    } else {
      (void)ask_at_times(fd_, s_);
    }
    if (!s_.kernel_end && !s_.kernel_error && !(reads_no_more && has_ended(s_))) [[likely]]
      return StepResult::next();
    if (has_to_follow(s_)) return going_back() ? StepResult::again() : failed_with();
    if (done_ > 0 || wanted_ == 0) return all();
    return reset_of(s_) != 0 ? refused() : to_nobody();
  }

  // Fails as TCP would: with an unreported error, or else EPIPE.
  StepResult refused() {
    const int error = tell_reset(s_);
    if (done_ > 0) return all();
    if (error == 0 || error == EPIPE) return StepResult::over(broken_pipe(flags_));
    errno = error;
    return StepResult::over(-1);
  }

  // Nobody reads the pipe. TCP takes one send after the peer's end, and gets a reset for it.
  StepResult to_nobody() {
    const bool by_kernel = s_.kernel_end;
    s_.kernel_end.set();
    s_.sent_to_nobody.set();
    ssize_t n = static_cast<ssize_t>(wanted_);
    if (by_kernel) {
      const msghdr message = message_of(buffers_, count_);
      const ssize_t taken = sys::call(SYS_sendmsg, fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (taken > 0) n = taken;
    }
    note_going_back(s_);  // the kernel may not report this
    return StepResult::over(n);
  }

  StepResult by_pipe() {
    const OwedRing owed(s_, OwedRing::kSends);
    Pipe::Done done;
    if (done_ == 0) {
      done = s_.pipe.send(buffers_, count_, room_);
    } else {
      IovecSlice part(buffers_, count_, done_);
      done = s_.pipe.send(part.buffers, part.count, room_);
    }
    if (done.err == EPIPE) {  // just ended, or left for TCP
      const bool known =
          (state_of(s_.mine()) & kGone) != 0 || sender().ended.load(std::memory_order_relaxed) == 1;
      return known || !is_left_rightly(fd_, s_) || going_back() ? StepResult::again()
                                                                : failed_with();
    }
    const bool rings = done.must_ring || owed.of_another();
    if (rings) {
      ring(fd_, s_);
      if (s_.kernel_error && done_ == 0) return StepResult::again();  // nobody will read it
    }
    if (s_.rang.load(std::memory_order_relaxed) != rings)
      s_.rang.store(rings, std::memory_order_relaxed);
    if (s_.pipe.is_large()) [[unlikely]]
      owe_memory(fd_, s_);
    done_ += done.bytes;
    if (failed(done)) return failed_with();
    if (done_ == wanted_) return all();
    if (room_ == PipeRoom::kWindow && !waits()) {
      room_ = PipeRoom::kWhole;
      return StepResult::again();
    }
    return done.bytes > 0 ? StepResult::again() : StepResult::next();
  }

  StepResult wait() {
    s_.full.fetch_add(1, std::memory_order_relaxed);
    if (!waits()) {
      if (done_ > 0) return all();
      poll_tcp_socket(fd_, s_);
      if (s_.kernel_end || s_.kernel_error) return StepResult::again();
      if (may_wait_unseen(s_) && unseen_use() != reasons::Why::kNone) return StepResult::again();
      errno = EAGAIN;
      return StepResult::over(-1);
    }
    bool over = false;
    auto sleep = [&] { return sleep_once(&over); };
    wait_for(
        &s_.send_wait, s_, since_, is_remote(s_) ? PeerHint{} : PeerHint{s_.pipe.peer_cpu()},
        [&] { return s_.pipe.writable(room_); }, sleep);
    return over ? failed_with() : StepResult::again();
  }

  bool sleep_once(bool* over) {
    const DeferSignals again;
    const BellSleep bell(s_);
    if (!s_.pipe.want_room(room_)) return false;
    s_.mine().words[kSleeps].fetch_add(1, std::memory_order_relaxed);
    // Unread TCP bytes would end this poll at once, as SHUT_RD does: naps instead.
    pollfd p{fd_, POLLIN | POLLRDHUP, 0};
    int most = -1;
    // relaxed: the call into the kernel came before
    const bool shut = s_.shut_read.load(std::memory_order_relaxed);
    if (reads_tcp(s_) || s_.kernel_end || shut || is_going_back(s_)) {
      p.events = 0;
      most = nap_ms_ = std::min(nap_ms_ * 2, kLongestNapMs);
    }
    if (!bell && most < 0) most = kWithoutBellMs;
    if (room_ == PipeRoom::kWindow) most = 1;
    // Nobody rings either when another thread shuts down writing.
    if (most < 0) most = kLongestSleepMs;
    const int timeout = time_left_ms(deadline(), most);
    if (timeout == 0) {
      errno = EAGAIN;
      *over = true;
      return false;
    }
    const PacketSleep packets(is_remote(s_), PacketSleep::May::kNotFetch);
    const int woken = sleep_in_send(&p, timeout, since_, &bell);
    if (woken == 0) room_ = PipeRoom::kWhole;  // the peer does not read
    *over = (woken < 0 && !goes_on(done_, deadline_, since_)) || !still_names(fd_, s_);
    if (!*over && !(bell && woken > 0 && p.revents == 0)) poll_tcp_socket(fd_, s_);
    return true;
  }

  /// a send that may wait need not fill all the room that TCP would give
  PipeRoom room_ = PipeRoom::kWindow;
  int nap_ms_ = 1;
  std::uint32_t turns_ = 0;  ///< at the gate
};

// For calls larger than the kernel takes.
[[gnu::noinline]] ssize_t send_in_part(int fd, Socket& s, const iovec* buffers, int count,
                                       int flags) {
  const Changed part = within_one_call(buffers, count);
  if (part.buffers() != nullptr) return Sending(fd, s, part.buffers(), part.count(), flags).run();
  errno = ENOMEM;
  return -1;
}

// Both ends are in the pipe and stay there; only this process has the socket.
bool is_plain(const Socket& s) {
  constexpr std::uint64_t kEnds = kLeaving | kGone;
  return (state_of(s.mine()) & (kSending | kEnds | kEnding)) == kSending &&
         (state_of(s.theirs()) & (kEnds | kClosed | kShut)) == 0 && !s.kernel_end &&
         !s.kernel_error && !s.inherited.load(std::memory_order_relaxed);
}

// The common case: all bytes go into the pipe. False: Sending does the rest, after `sent` bytes.
bool send_at_once(int fd, Socket& s, const iovec* buffers, int count, std::size_t wanted,
                  std::size_t* sent) {
  if (!is_plain(s)) return false;
  const DeferSignals undisturbed;
  if (ask_at_times(fd, s) && !is_plain(s)) return false;
  const Pipe::Done done = s.pipe.send(buffers, count, PipeRoom::kWindow);
  if (done.bytes == 0) return false;
  if (done.must_ring) {
    ring(fd, s);
    if (s.kernel_error) return false;  // nobody will read it
  }
  if (s.rang.load(std::memory_order_relaxed) != done.must_ring)
    s.rang.store(done.must_ring, std::memory_order_relaxed);
  if (s.pipe.is_large()) [[unlikely]]
    owe_memory(fd, s);
  *sent = done.bytes;
  return done.bytes == wanted || done.err != 0;
}

}  // namespace

ssize_t shared_send(int fd, Socket& s, const iovec* buffers, int count, int flags) {
  const std::size_t wanted = total(buffers, count);
  if (wanted > kMostInCall) [[unlikely]]
    return send_in_part(fd, s, buffers, count, flags);
  if (s.rang.load(std::memory_order_relaxed)) s.pipe.fetch_ahead();  // it seldom sends
  std::size_t sent = 0;
  if ((flags & kOfTcpAlone) == 0 && send_at_once(fd, s, buffers, count, wanted, &sent)) [[likely]]
    return static_cast<ssize_t>(sent);
  return Sending(fd, s, buffers, count, flags, sent).run();
}

}  // namespace clan::preload

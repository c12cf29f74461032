#include "stream/receive.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "clan/face/wait.h"
#include "demote/demote.h"
#include "demote/demote_on_request.h"
#include "os/real.h"
#include "os/signals.h"
#include "os/sys.h"
#include "state/face.h"
#include "stream/bell.h"
#include "stream/blocking.h"
#include "stream/ending.h"
#include "stream/going_back.h"
#include "stream/iovec_slice.h"
#include "table/fd_table.h"
#include "table/unseen_sets.h"
#include "tcp/ring.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {
namespace {

using namespace socket_face;

// Reads what TCP still has. Returns bytes; 0: go on with the pipe; -1 with errno (EAGAIN: nothing
// yet). `all`: those were TCP's last.
ssize_t receive_from_tcp(int fd, Socket& s, const iovec* buffers, int count, int flags, bool* all) {
  const Draining draining(s);
  if (s.has_drained()) return 0;
  std::size_t certain = 0;
  // Read first: until the peer has switched, what is left is unknown.
  const bool is_known = (state_of(s.theirs()) & kSending) != 0;
  const ssize_t left = left_in_tcp(fd, s, &certain);
  if (left <= 0) return left;
  int at_mark = 0;
  if (certain == 0 && (state_of(s.theirs()) & kSending) == 0 &&
      sys::ioctl(fd, SIOCATMARK, &at_mark) == 0 && at_mark != 0) {
    // FIONREAD counts up to the mark, and only TCP carries urgent data.
    certain = ~std::size_t{0};
  }
  if (certain == 0) {
    look_for_end(fd, s);
    // Ended before or after the switch: the pipe may have bytes too.
    if (s.kernel_end || s.kernel_error) return 0;
    errno = EAGAIN;
    return -1;
  }
  IovecSlice part(buffers, count, 0, certain);
  msghdr message = message_of(part.buffers, part.count);
  const int how = (flags & MSG_PEEK) | discarding(buffers, count) | MSG_DONTWAIT;
  const ssize_t n = sys::call(SYS_recvmsg, fd, &message, how);
  *all = n == left && is_known;
  return n;
}

// The descriptor was closed during the call: the kernel would still give the call its bytes.
ssize_t receive_after_close(Socket& s, const iovec* buffers, int count, bool peek) {
  const Pipe::Done last = s.pipe.receive(buffers, count, peek);
  const int other = last.must_ring ? descriptor_of(s) : -1;
  if (other >= 0) ring(other, s);
  errno = EBADF;
  return last.bytes > 0 ? static_cast<ssize_t>(last.bytes) : -1;
}

// Asks to be rung for bytes while it lives; cancellation ends that too.
class Wanted {
 public:
  explicit Wanted(Socket& s) : s_(s) {}
  ~Wanted() { s_.pipe.unwant_data(); }
  Wanted(const Wanted&) = delete;
  Wanted& operator=(const Wanted&) = delete;

 private:
  Socket& s_;
};

// One call of recv(), as a loop over steps.
class Receiving : StreamCall {
 public:
  Receiving(int fd, Socket& s, const iovec* buffers, int count, int flags)
      : StreamCall(fd, s, buffers, count, flags, SO_RCVTIMEO, 0),
        peek_((flags & MSG_PEEK) != 0),
        // relaxed: a setting
        target_((flags & MSG_WAITALL) != 0
                    ? wanted_
                    : std::min(wanted_, static_cast<std::size_t>(
                                            s.low_water.load(std::memory_order_relaxed)))) {}

  ssize_t run() {
    for (;;) {
      StepResult step = from_front();
      if (step.goes_on()) step = look_behind();
      if (step.goes_on()) step = leaves_and_ends();
      if (step.goes_on()) step = wait();
      if (step.is_answer()) return step.answer();
    }
  }

 private:
  StepResult going_back() {
    if (waits() && (done_ == 0 || done_ < target_))
      return nap() ? StepResult::again() : failed_with();
    note_going_back(s_);
    errno = EAGAIN;
    return failed_with();
  }

  // Reads from the kernel if it has all bytes, else from TCP and then the pipe.
  StepResult from_front() {
    if (peek_) done_ = 0;  // peek from the start again
    // The peer has gone and never sent by the pipe.
    if (reads_tcp(s_) && (state_of(s_.theirs()) & (kGone | kSending)) == kGone)
      (void)came_back(fd_, s_);
    tcp_is_peeked_ = false;
    if (s_.reads_kernel()) return from_kernel();
    if (!s_.has_drained()) {
      const StepResult step = from_tcp();
      if (!step.goes_on()) return step;
    }
    if (s_.has_drained() || tcp_is_peeked_ || s_.kernel_end || s_.kernel_error) return from_pipe();
    return StepResult::next();
  }

  StepResult from_kernel() {
    tell_sets(s_);
    IovecSlice part(buffers_, count_, done_);
    msghdr message =
        done_ > 0 ? message_of(part.buffers, part.count) : message_of(buffers_, count_);
    // Not in the kernel, which would start the timeout anew.
    const bool timed = deadline_ != 0 && deadline_ != kNoDeadline;
    const int more = discarding(buffers_, count_) |
                     (timed || (done_ >= target_ && done_ > 0) ? MSG_DONTWAIT : 0);
    const AllowSignals here;
    const ssize_t n = real().recvmsg(fd_, &message, flags_ | more);
    const ssize_t read = std::max<ssize_t>(n, 0);
    if (!timed || peek_ || (n < 0 && errno != EAGAIN) || done_ + read >= target_)
      return StepResult::over(done_ > 0 ? static_cast<ssize_t>(done_) + read : n);
    if (n == 0) return all();
    if (n > 0) {
      done_ += static_cast<std::size_t>(n);
    } else if (sleep_for_bytes(fd_, s_, nullptr, true, deadline_, since_) < 0) {
      return failed_with();
    }
    return StepResult::again();
  }

  StepResult from_tcp() {
    IovecSlice part(buffers_, count_, done_);
    const ssize_t n = receive_from_tcp(fd_, s_, part.buffers, part.count, flags_, &tcp_is_peeked_);
    if (n > 0) {
      done_ += static_cast<std::size_t>(n);
      give_up_on_peer(fd_, s_);
      if (done_ == wanted_ || (peek_ && !tcp_is_peeked_ && done_ >= target_)) return all();
      // The pipe's bytes behind it belong to the same answer.
      if (!peek_) return StepResult::again();
    }
    if (s_.reads_kernel()) return StepResult::again();
    // Bytes are there, and none is wanted.
    if (n == 0 && wanted_ == 0 && !s_.has_drained() && !s_.kernel_end && !s_.kernel_error)
      return all();
    return n < 0 && errno != EAGAIN ? failed_with() : StepResult::next();
  }

  StepResult from_pipe() {
    if (s_.kernel_end || s_.kernel_error) [[unlikely]]
      s_.pipe.writer_has_gone();
    const bool more_by_tcp = peek_ && s_.has_drained() && (state_of(s_.theirs()) & kGone) != 0;
    const OwedRing owed(s_, OwedRing::kReceives);
    Pipe::Done done;
    if (done_ == 0) {
      done = s_.pipe.receive(buffers_, count_, peek_);
    } else {
      IovecSlice part(buffers_, count_, done_);
      done = s_.pipe.receive(part.buffers, part.count, peek_);
    }
    if (done.must_ring || owed.of_another()) ring(fd_, s_);
    done_ += done.bytes;
    if (failed(done)) return failed_with();
    // A peek does not come to the end of the pipe; what the peer has sent since lies behind it.
    if (more_by_tcp && done_ > 0 && done_ < wanted_) {
      const IovecSlice rest(buffers_, count_, done_);
      msghdr message = message_of(rest.buffers, rest.count);
      const int how = MSG_PEEK | MSG_DONTWAIT | discarding(buffers_, count_);
      done_ += std::max<ssize_t>(sys::call(SYS_recvmsg, fd_, &message, how), 0);
    }
    if (done_ > 0 && done_ >= target_) {
      // The rest may be on TCP again, and belongs to the same answer.
      const bool rest = done_ != wanted_ && !peek_ && (state_of(s_.theirs()) & kGone) != 0;
      return rest && came_back(fd_, s_) ? StepResult::again() : all();
    }
    if (wanted_ == 0 && s_.pipe.front() == PipeFront::kBytes) return all();
    return StepResult::next();
  }

  // No bytes, or too few.
  StepResult look_behind() {
    if (s_.shut_read.load(std::memory_order_relaxed)) {
      if (done_ == 0) poll_tcp_socket(fd_, s_);  // a reset is reported all the same
      return done_ > 0 ? all() : StepResult::over(ended(s_));
    }
    if (done_ > 0 && done_ >= target_) return all();
    if (!peek_ || done_ == 0) return StepResult::next();
    // Fewer than it wants to peek: the kernel cannot wait, as some are there already.
    const bool over = s_.kernel_end || s_.kernel_error || s_.pipe.front() == PipeFront::kBroken;
    const AllowSignals here;
    if (over || since_.handled() || !waits() || time_left_ms(deadline(), -1) == 0 ||
        real().poll(nullptr, 0, 1) < 0) {
      return all();
    }
    poll_tcp_socket(fd_, s_);
    return StepResult::again();
  }

  StepResult leaves_and_ends() {
    leaves_ = false;
    switch (s_.pipe.front()) {
      case PipeFront::kBytes:
        if (s_.has_drained() && wanted_ > 0) return StepResult::again();
        break;  // TCP's come first, and are in flight
      case PipeFront::kEnd:
        if (s_.has_drained()) return all();
        break;
      case PipeFront::kLeave:
        leaves_ = true;
        poll_tcp_socket(fd_, s_);
        if (came_back(fd_, s_)) return StepResult::again();
        break;
      case PipeFront::kBroken:
        if (done_ == 0) errno = ECONNRESET;
        return failed_with();
      default: break;
    }
    if (s_.kernel_end || s_.kernel_error) {
      if (s_.pipe.front() == PipeFront::kBytes)
        return StepResult::again();  // written before the end
      if (leaves_ && has_to_follow(s_)) return going_back();
      return done_ > 0 ? all() : StepResult::over(ended(s_));
    }
    return waits() ? StepResult::next() : without_waiting();
  }

  StepResult without_waiting() {
    if (done_ > 0) return all();
    if (check_due(s_) || (state_of(s_.theirs()) & kClosed) != 0) {
      poll_tcp_socket(fd_, s_);
      if (s_.kernel_end || s_.kernel_error) return StepResult::again();
      if (!leaves_ && s_.pipe.front() != PipeFront::kNothing) return StepResult::again();
    }
    if (may_wait_unseen(s_) && unseen_use() != reasons::Why::kNone) return StepResult::again();
    errno = EAGAIN;
    return StepResult::over(-1);
  }

  // Spins while that pays, then sleeps in the kernel.
  StepResult wait() {
    int woken = 0;
    auto sleep = [&] { return sleep_once(&woken); };
    wait_for(
        leaves_ || reads_tcp(s_) ? nullptr : &s_.receive_wait, s_, since_, awaited_of(s_),
        [&] { return !s_.pipe.seems_empty(); }, sleep);
    if (woken >= 0) return StepResult::again();
    if (done_ > 0 || errno != EBADF || reads_tcp(s_)) return failed_with();
    return StepResult::over(receive_after_close(s_, buffers_, count_, peek_));
  }

  bool sleep_once(int* woken) {
    const DeferSignals again;
    {
      const BellSleep bell(s_, fd_);
      const Wanted wanted(s_);
      if (!s_.pipe.want_data() && !leaves_) {
        // The peer may have switched meanwhile.
        if (reads_tcp(s_)) look_at_tcp(fd_, s_);
        if (!reads_tcp(s_)) return false;
      }
      *woken = sleep_for_bytes(fd_, s_, &bell, done_ > 0, deadline(), since_);
      s_.pipe.fetch_ahead();
    }
    const bool in_pipe = *woken == kFetched && !reads_tcp(s_) && !leaves_ && !is_to_go(s_);
    if (in_pipe) return !s_.pipe.seems_empty();
    if (*woken >= 0) poll_tcp_socket(fd_, s_);
    return true;
  }

  const bool peek_;
  const std::size_t target_;  ///< bytes that make a blocking call return
  bool tcp_is_peeked_ = false;
  bool leaves_ = false;  ///< the peer's last record says that it leaves
};

// Receives into several buffers or a null one. Null buffers discard here, so a null one of the
// application becomes another address without memory, for EFAULT.
[[gnu::noinline]] ssize_t receive_changed(int fd, Socket& s, const iovec* buffers, int count,
                                          int flags) {
  const Changed given = within_one_call(buffers, count);
  if (given.buffers() == nullptr) {
    errno = ENOMEM;
    return -1;
  }
  for (int i = 0; (flags & MSG_TRUNC) == 0 && i < given.count(); ++i) {
    iovec& one = given.buffers()[i];
    if (one.iov_base == nullptr && one.iov_len > 0) one.iov_base = reinterpret_cast<void*>(1);
  }
  return Receiving(fd, s, given.buffers(), given.count(), flags).run();
}

// The common case: takes what lies in the pipe. 0: nothing, or a case for Receiving.
std::size_t receive_at_once(int fd, Socket& s, const iovec& buffer) {
  const bool plain = s.has_drained() && !s.kernel_end && !s.kernel_error && !s.reads_kernel() &&
                     (state_of(s.theirs()) & kGone) == 0 &&
                     // relaxed: of this process, and a setting
                     !s.inherited.load(std::memory_order_relaxed) &&
                     s.low_water.load(std::memory_order_relaxed) <= 1;
  if (!plain) return 0;
  const DeferSignals undisturbed;
  const Pipe::Done done = s.pipe.receive(&buffer, 1, false);
  if (done.must_ring) ring(fd, s);
  return done.bytes;
}

}  // namespace

ssize_t shared_receive(int fd, Socket& s, const iovec* buffers, int count, int flags) {
  const auto is_null = [](const iovec& one) { return one.iov_base == nullptr && one.iov_len > 0; };
  const bool discards = (flags & MSG_TRUNC) != 0;
  constexpr int kPlain = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CMSG_CLOEXEC;
  if (count == 1 && (flags & ~kPlain) == 0 && buffers->iov_base != nullptr &&
      buffers->iov_len - 1 < kMostInCall) {
    if (const std::size_t n = receive_at_once(fd, s, *buffers); n > 0) [[likely]]
      return static_cast<ssize_t>(n);
  }
  if (total(buffers, count) <= kMostInCall &&
      (discards || std::none_of(buffers, buffers + count, is_null))) [[likely]]
    return Receiving(fd, s, buffers, count, flags).run();
  return receive_changed(fd, s, buffers, count, flags);
}

}  // namespace clan::preload

// Calls that wait: their time limits, the signals that end them, and their sleep in the kernel.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "clan/face/wait.h"
#include "os/signals.h"
#include "state/remote.h"
#include "state/socket.h"
#include "stream/bell.h"
#include "stream/iovec_slice.h"

namespace clan::preload {

/// What a step of a call on a stream says: go on to the next step, begin again with the first, or
/// the call's answer.
class StepResult {
 public:
  static StepResult next() { return StepResult(kNext); }
  static StepResult again() { return StepResult(kAgain); }
  /// The call is over: bytes, or -1 with errno.
  static StepResult over(ssize_t answer) { return StepResult(answer); }
  bool goes_on() const { return value_ == kNext; }
  bool is_answer() const { return value_ >= -1; }
  ssize_t answer() const { return value_; }

 private:
  static constexpr ssize_t kNext = -2, kAgain = -3;
  explicit StepResult(ssize_t value) : value_(value) {}
  ssize_t value_;
};

/// When a blocking call gives up. `option`: SO_RCVTIMEO or SO_SNDTIMEO.
std::uint64_t deadline_of(int fd, int option);

/// For poll: until then, but not more than `most`, -1 for any. 0: it is over.
int time_left_ms(std::uint64_t deadline, int most);

/// Sleeps in the kernel until the bell is rung or the descriptor is readable, as a blocking recv
/// would: signals and cancellation are the kernel's. `bell`: null where all comes by TCP. `more`:
/// bytes of the same call have been read, so it is not to begin anew after a signal; nor does the
/// kernel begin one anew that has a time-out. 0: something is to be checked; kFetched: in the pipe
/// only; or -1 with errno.
constexpr int kFetched = 2;
int sleep_for_bytes(int fd, Socket& s, const BellSleep* bell, bool more, std::uint64_t deadline,
                    SignalSnapshot& since);

/// The sleep of a send has failed. False: so does the send.
bool goes_on(std::size_t sent, std::uint64_t deadline, SignalSnapshot& since);

/// Sleeps in poll(), until the send's descriptor is ready, but checks first what has run.
int sleep_in_send(pollfd* p, int timeout_ms, SignalSnapshot& since,
                  const BellSleep* bell = nullptr);

/// A moment of a blocking call that another process keeps from its bytes or its room, of which it
/// has moved `moved`. False: the call is over, with errno.
bool nap_in_call(int fd, const Socket& s, std::size_t moved, std::uint64_t deadline,
                 SignalSnapshot& since);

/// Naps of a call that another process keeps from a socket which is on TCP: it just moves it.
class NapsInCall {
 public:
  /// `option`: SO_RCVTIMEO or SO_SNDTIMEO.
  NapsInCall(int fd, Socket& s, int flags, int option)
      : fd_(fd), s_(s), flags_(flags), option_(option) {}
  /// False: the call is over, with errno.
  bool nap();

 private:
  int fd_;
  Socket& s_;
  int flags_, option_;
  std::optional<SignalSnapshot> since_;
  std::uint64_t deadline_ = 0;
};

/// As is_nonblocking(), when it is not known or another process may have changed it.
int ask_nonblocking(int fd, Socket& s);

/// O_NONBLOCK, or FIONBIO.
inline bool is_nonblocking(int fd, Socket& s) {
  const int known = s.nonblocking.load(std::memory_order_relaxed);
  const bool asks = known < 0 || s.inherited.load(std::memory_order_relaxed);
  return (asks ? ask_nonblocking(fd, s) : known) != 0;
}

/// A call finds nothing, or no room, and the socket has never been in a set or polled: its thread
/// may be about to wait past the library. True at the first such call, the second, the fourth, …:
/// it is to be looked for then.
inline bool may_wait_unseen(Socket& s) {
  // relaxed: a hint, and a count
  if (s.is_watched() || s.polled.load(std::memory_order_relaxed)) [[likely]]
    return false;
  return std::has_single_bit(s.unwatched_calls.fetch_add(1, std::memory_order_relaxed) + 1);
}

/// What the steps of a call that moves bytes have in common.
class StreamCall {
 protected:
  /// `option`: SO_RCVTIMEO or SO_SNDTIMEO. `done`: bytes that have been moved already.
  StreamCall(int fd, Socket& s, const iovec* buffers, int count, int flags, int option,
             std::size_t done)
      : fd_(fd),
        s_(s),
        buffers_(buffers),
        count_(count),
        flags_(flags),
        option_(option),
        wanted_(total(buffers, count)),
        done_(done) {}

  StepResult all() const { return StepResult::over(static_cast<ssize_t>(done_)); }
  /// What there is, or -1 with errno.
  StepResult failed_with() const { return done_ > 0 ? all() : StepResult::over(-1); }
  bool waits() const { return (flags_ & MSG_DONTWAIT) == 0 && !is_nonblocking(fd_, s_); }
  /// Returns when the call times out, as set at its first sleep.
  std::uint64_t deadline() {
    return deadline_ != 0 ? deadline_ : deadline_ = deadline_of(fd_, option_);
  }
  /// A moment of a call that another process keeps from its bytes or its room. False: the call is
  /// over, with errno.
  bool nap() { return nap_in_call(fd_, s_, done_, deadline(), since_); }

  const DeferSignals undisturbed_;
  SignalSnapshot since_;
  const int fd_;
  Socket& s_;
  const iovec* const buffers_;
  const int count_, flags_, option_;
  const std::size_t wanted_;
  std::size_t done_;
  std::uint64_t deadline_ = 0;
};

/// One step of a wait in a blocking call, by the waiting place `at`; without one there is nothing
/// to spin for. `sleep()` sees to signal handlers that have run.
template <typename Ready, typename Sleep>
void wait_for(std::optional<Waiter>* at, const Socket& s, const SignalSnapshot& since,
              PeerHint peer, Ready&& ready, Sleep&& sleep) {
  WaitResult waited = WaitResult::kTimedOut;
  if (at != nullptr && *at) {
    const AllowSignals here;
    waited = (*at)->wait([&] { return ready() || since.handled(); }, peer, kNoDeadline, sleep,
                         [&] { return fetch_for(s) && ready(); });
  }
  if (waited == WaitResult::kTimedOut || (waited == WaitResult::kReady && since.handled()))
    (void)sleep();
}

}  // namespace clan::preload

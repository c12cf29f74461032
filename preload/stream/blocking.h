// Blocking calls: their deadlines, the signals that end them, and their sleep in the kernel.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "clan/face/wait.h"
#include "os/signals.h"
#include "state/remote.h"
#include "state/socket.h"
#include "stream/bell.h"
#include "stream/iovec_slice.h"

namespace clan::preload {

/// The result of a step of a call on a stream: do the next step, start over, or return.
class StepResult {
 public:
  static StepResult next() { return StepResult(kNext); }
  static StepResult again() { return StepResult(kAgain); }
  /// Ends the call: bytes, or -1 with errno.
  static StepResult over(ssize_t answer) { return StepResult(answer); }
  bool goes_on() const { return value_ == kNext; }
  bool is_answer() const { return value_ >= -1; }
  ssize_t answer() const { return value_; }

 private:
  static constexpr ssize_t kNext = -2, kAgain = -3;
  explicit StepResult(ssize_t value) : value_(value) {}
  ssize_t value_;
};

/// Returns when a blocking call times out. `option`: SO_RCVTIMEO or SO_SNDTIMEO.
std::uint64_t deadline_of(int fd, Socket& s, int option);

/// Returns the time left, for poll, at most `most` (-1: no limit). 0: it is over.
int time_left_ms(std::uint64_t deadline, int most);

/// Sleeps in the kernel until the bell is rung or the descriptor is readable, as a blocking recv
/// would, with its signals and cancellation. `bell`: null if all bytes come by TCP. `more`: the
/// call has read bytes, so a signal ends it; as in the kernel, so it does with a timeout. Returns
/// 0: check again; kFetched: check the pipe only; -1 with errno.
constexpr int kFetched = 2;
int sleep_for_bytes(int fd, Socket& s, const BellSleep* bell, bool more, std::uint64_t deadline,
                    SignalSnapshot& since);

/// Whether a send goes on after its sleep failed.
bool goes_on(std::size_t sent, std::uint64_t deadline, SignalSnapshot& since);

/// Sleeps in poll() for a send, unless a signal handler has run.
int sleep_in_send(pollfd* p, int timeout_ms, SignalSnapshot& since,
                  const BellSleep* bell = nullptr);

/// Naps in a blocking call that another process keeps from its bytes or room. `moved`: bytes so
/// far. False: the call is over, with errno.
bool nap_in_call(int fd, const Socket& s, std::size_t moved, std::uint64_t deadline,
                 SignalSnapshot& since);

/// Naps of a call on a TCP socket that another process is just moving.
class NapsInCall {
 public:
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

/// Asks the kernel, for is_nonblocking().
int ask_nonblocking(int fd, Socket& s);

/// Whether O_NONBLOCK is set (also by FIONBIO).
inline bool is_nonblocking(int fd, Socket& s) {
  const int known = s.nonblocking.load(std::memory_order_relaxed);
  const bool asks = known < 0 || s.inherited.load(std::memory_order_relaxed);
  return (asks ? ask_nonblocking(fd, s) : known) != 0;
}

/// Whether to look for a wait that bypasses the library, when a call finds nothing, or no room:
/// true at the first such call, the second, the fourth, … if no set or poll ever named the socket.
inline bool may_wait_unseen(Socket& s) {
  // relaxed: a hint, and a count
  if (s.is_watched() || s.polled.load(std::memory_order_relaxed)) [[likely]]
    return false;
  return std::has_single_bit(s.unwatched_calls.fetch_add(1, std::memory_order_relaxed) + 1);
}

/// The common part of calls that move bytes.
class StreamCall {
 protected:
  /// `option`: SO_RCVTIMEO or SO_SNDTIMEO. `done`: bytes already moved.
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
  /// Returns the bytes moved, or -1 with errno.
  StepResult failed_with() const { return done_ > 0 ? all() : StepResult::over(-1); }
  bool waits() const { return (flags_ & MSG_DONTWAIT) == 0 && !is_nonblocking(fd_, s_); }
  /// Returns the deadline, set when first asked for.
  std::uint64_t deadline() {
    return deadline_ != 0 ? deadline_ : deadline_ = deadline_of(fd_, s_, option_);
  }
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

/// Waits once in a blocking call: spins at `at` if there is one, then calls `sleep()`, which
/// handles signals that have arrived.
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

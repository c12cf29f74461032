// One end's way back to TCP, whichever end wants it, in steps that never wait long.
#pragma once

#include <cstdint>

#include "clan/detail/clock.h"
#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"
#include "state/face.h"
#include "state/socket.h"

namespace clan::preload {

/// Whether a process of this end has begun to leave, and perhaps died. False until the peer can
/// follow, which needs to know what was read here.
inline bool has_begun_to_go(const Socket& s) {
  // relaxed: hints; each step checks again
  const auto relaxed = std::memory_order_relaxed;
  return (state_of(s.mine()) & socket_face::kLeaving) != 0 &&
         (s.mine().words[socket_face::kGivenBack].load(relaxed) != 0 ||
          s.pipe.page().ends[s.pipe.end()].sender.ended.load(relaxed) == 2);
}

/// Whether this end has to go back: an end wants it, or an earlier call could not finish it.
inline bool is_to_go(const Socket& s) {
  // relaxed: see answers_later()
  const bool wants = (state_of(s.theirs()) & socket_face::kLeaving) != 0 || has_begun_to_go(s) ||
                     s.answer_wanted_ns.load(std::memory_order_relaxed) != 0;
  return wants && (state_of(s.mine()) & socket_face::kGone) == 0;
}

/// Whether TCP has reported the end of a peer that sends by TCP again, while this end has yet to
/// follow. The peer may be half-closed and still read the pipe, and TCP may hold bytes before its
/// end that cannot be read yet.
inline bool has_to_follow(const Socket& s) {
  return s.kernel_end && !s.kernel_error && (state_of(s.theirs()) & socket_face::kGone) != 0 &&
         is_to_go(s);
}

/// Does this end's part if is_to_go(). False: later, as the peer has not said what it has read. The
/// first call waits a moment; then each call on the socket tries again, and no thread sleeps long.
bool answer_leaving(int fd, Socket& s);

/// Whether the peer is back on TCP and its pipe is read. True: this end reads the kernel next.
bool came_back(int fd, Socket& s);

/// Do what both ends do, under s.moving. False: not yet. go_or_later() tries for a moment; then
/// every thread that uses the socket does.
bool go(int fd, Socket& s);
bool go_now(int fd, Socket& s);
bool go_or_later(int fd, Socket& s);

constexpr std::uint64_t kForOtherEndNs = 10'000'000'000u;  ///< until its program makes a call

void nap();

/// How long a call waits for the peer's part in what can also be done later.
class Moment {
 public:
  bool over() const { return monotonic_ns() - begin_ > kNs; }

 private:
  static constexpr std::uint64_t kNs = 1'000'000;
  const std::uint64_t begin_ = monotonic_ns();
};

/// Whether the peer has closed or reset the connection.
bool closed(int fd);

/// Does the shutdown that this end still owes (socket_face::kEnding) by TCP.
void end_by_tcp(int fd, Socket& s);

/// Leaves the socket to the kernel if both directions are back on TCP.
void settle(Socket& s);

/// Makes this end read TCP.
void read_kernel(int fd, Socket& s);

/// Makes epoll sets watch what the application asked for, if it is back on TCP.
void tell_sets(Socket& s);

}  // namespace clan::preload

// One end's way back to TCP, whichever of the two wants it, as one step that never waits for long.
#pragma once

#include <cstdint>

#include "clan/face/socket_face.h"
#include "state/face.h"
#include "state/socket.h"

namespace clan::preload {

/// A process of this end is on its way back to TCP, and may have been stopped or killed there.
/// False as long as the other end would not follow: first it needs to know what has been read here.
inline bool has_begun_to_go(const Socket& s) {
  // relaxed: hints; each step checks again
  const auto relaxed = std::memory_order_relaxed;
  return (state_of(s.mine()) & socket_face::kLeaving) != 0 &&
         (s.mine().words[socket_face::kGivenBack].load(relaxed) != 0 ||
          s.pipe.page().ends[s.pipe.end()].sender.ended.load(relaxed) == 2);
}

/// This end is to go back to TCP, as one of the two wants that, or as a call of this one could not
/// do it at once.
inline bool is_to_go(const Socket& s) {
  // relaxed: see answers_later()
  const bool wants = (state_of(s.theirs()) & socket_face::kLeaving) != 0 || has_begun_to_go(s) ||
                     s.answer_wanted_ns.load(std::memory_order_relaxed) != 0;
  return wants && (state_of(s.mine()) & socket_face::kGone) == 0;
}

/// TCP has reported the end of the other end, which sends by TCP again, while this one has yet to
/// follow. Then it may be half-closed, and read by the pipe what is sent here; and bytes of TCP may
/// lie before the end that cannot be read yet.
inline bool has_to_follow(const Socket& s) {
  return s.kernel_end && !s.kernel_error && (state_of(s.theirs()) & socket_face::kGone) != 0 &&
         is_to_go(s);
}

/// Does what that takes of this end. To be called when is_to_go(). False: later,
/// as the other end has not said yet what it has read. The first call waits a moment for that; from
/// then on all that use the socket try again, and no thread sleeps for long (stream/going_back.h).
bool answer_leaving(int fd, Socket& s);

/// The other end has gone back to TCP, and all it put into the pipe has been read. True: what is
/// read next is the kernel's.
bool came_back(int fd, Socket& s);

/// What both ends do of it, under s.moving. False: not for now. go_or_later(): tries for a moment;
/// then every thread that uses the socket tries.
bool go(int fd, Socket& s);
bool go_now(int fd, Socket& s);
bool go_or_later(int fd, Socket& s);

}  // namespace clan::preload

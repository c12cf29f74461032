// What a few loads show about a connection that has moved.
#pragma once

#include <cstdint>
#include <cstring>

#include "clan/face/socket_face.h"
#include "state/face.h"
#include "state/socket.h"

namespace clan::preload {

/// readiness() has nothing to say but perhaps POLLOUT. False means that it has to be asked.
inline bool is_idle_fast(const Socket& s) {
  const bool plain = s.has_drained() && !s.kernel_end && !s.kernel_error &&
                     !s.shut_read.load(std::memory_order_relaxed) &&
                     !s.back_in.load(std::memory_order_relaxed);
  constexpr std::uint64_t kDemotes = socket_face::kLeaving | socket_face::kGone;
  return plain && s.pipe.seems_empty() &&
         // PAIR face.state
         (s.theirs().words[socket_face::kState].load(std::memory_order_acquire) & kDemotes) ==
             0;  // PAIR face.state
}

/// Its record lies in the pipe: the peer sends no more.
inline bool has_ended(const Socket& s) {
  // relaxed: a hint; the record says
  return s.pipe.page().ends[1 - s.pipe.end()].sender.ended.load(std::memory_order_relaxed) == 1;
}

/// shutdown() has returned, and the other end does not know.
inline bool owes_end(const Socket& s) { return (state_of(s.mine()) & socket_face::kEnding) != 0; }

/// This end sends no more.
inline bool is_ended_here(const Socket& s) {
  // relaxed: a hint; the record says
  return s.pipe.page().ends[s.pipe.end()].sender.ended.load(std::memory_order_relaxed) == 1 ||
         owes_end(s);
}

}  // namespace clan::preload

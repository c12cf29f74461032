// A connection on its way back to TCP that waits for the peer's part.
//
// It is not ready for what waits for that, so nobody spins. Nothing rings when it is over, so
// nobody sleeps long. What is ready then is an edge, as a call has answered that there was nothing.
#pragma once

#include <atomic>
#include <cstdint>

#include "clan/face/socket_face.h"
#include "state/face.h"
#include "state/hooks.h"
#include "state/socket.h"
#include "stream/ending.h"

namespace clan::preload {

constexpr std::int64_t kGoingBackNs = 10'000'000;  ///< the longest sleep meanwhile

/// Whether this end has to try again to go back (demote/demote_on_request.h).
inline bool answers_later(const Socket& s) {
  // relaxed: the ring at the end of going back ends a sleep that misses it
  return s.answer_wanted_ns.load(std::memory_order_relaxed) != 0 &&
         (state_of(s.mine()) & socket_face::kGone) == 0;
}

/// Whether this end has left the pipe but is not back on TCP yet.
inline bool is_on_its_way(const Socket& s) {
  // relaxed: a glance
  return s.pipe.page().ends[s.pipe.end()].sender.ended.load(std::memory_order_relaxed) == 2 &&
         (state_of(s.mine()) & socket_face::kGone) == 0;
}

/// Whether something may come that nobody announces.
inline bool is_going_back(const Socket& s) {
  // The leaver may have lost its bells.
  const bool leaves = (state_of(s.theirs()) & (socket_face::kLeaving | socket_face::kGone)) ==
                      socket_face::kLeaving;
  return leaves || answers_later(s) || s.is_resending() || owes_end(s) || is_on_its_way(s);
}

/// Called before a call returns EAGAIN for that reason, or fewer bytes than there may be.
inline void note_going_back(Socket& s) {
  // relaxed: counts; the locks of sets publish them
  s.going_back.fetch_add(1, std::memory_order_relaxed);
  s.full.fetch_add(1, std::memory_order_relaxed);
  hooks.going_back(s);
}

}  // namespace clan::preload

// A connection that is on its way back to TCP, where the other end has to do its part first.
//
// Meanwhile it is not ready for what waits for that, so nobody spins; nobody rings when it is over,
// so nobody sleeps for long; and what then is ready is an edge, as the program has got the answer
// that there was nothing.
#pragma once

#include <atomic>
#include <cstdint>

#include "clan/face/socket_face.h"
#include "state/face.h"
#include "state/hooks.h"
#include "state/socket.h"
#include "stream/glance.h"

namespace clan::preload {

constexpr std::int64_t kGoingBackNs = 10'000'000;  ///< the longest sleep meanwhile

/// One of the ends goes back to TCP, and this one has to try again to do its part of that
/// (demote/demote_on_request.h).
inline bool answers_later(const Socket& s) {
  // relaxed: a sleep that does not see it ends by the ring of its going
  return s.answer_wanted_ns.load(std::memory_order_relaxed) != 0 &&
         (state_of(s.mine()) & socket_face::kGone) == 0;
}

/// A send would find that its end has left the pipe, and that it is not back on TCP yet.
inline bool is_on_its_way(const Socket& s) {
  // relaxed: a glance
  return s.pipe.page().ends[s.pipe.end()].sender.ended.load(std::memory_order_relaxed) == 2 &&
         (state_of(s.mine()) & socket_face::kGone) == 0;
}

/// Something may come that nobody announces.
inline bool is_going_back(const Socket& s) {
  // It may have lost what it rings by.
  const bool leaves = (state_of(s.theirs()) & (socket_face::kLeaving | socket_face::kGone)) ==
                      socket_face::kLeaving;
  return leaves || answers_later(s) || s.is_resending() || owes_end(s) || is_on_its_way(s);
}

/// A call is about to say EAGAIN for that, or that there are fewer bytes than there may be.
inline void note_going_back(Socket& s) {
  // relaxed: counts, which the lock of all sets publishes
  s.going_back.fetch_add(1, std::memory_order_relaxed);
  s.full.fetch_add(1, std::memory_order_relaxed);
  hooks.going_back(s);
}

}  // namespace clan::preload

#include "migrate/far_meet.h"

#include <cstdint>
#include <utility>

#include "clan/clock.h"
#include "clan/pipe.h"
#include "clan/socket_face.h"
#include "far/bell.h"
#include "far/carrier.h"
#include "migrate/attach.h"
#include "migrate/calls_made.h"
#include "state/buffers.h"
#include "state/face.h"
#include "state/internal_fds.h"
#include "state/withdraw.h"

namespace clan::preload {
namespace {

using reasons::Why;

constexpr std::uint64_t kMeetNs = 10'000'000'000;  ///< the other end makes a call, if it has CLAN

void give_up(int fd, Socket& s, Why why) {
  let_go_of_far(s);
  stay(fd, s, why);
}

bool goes_on(const Socket& s, std::uint32_t call) {
  return call < kMostOfferCalls || monotonic_ns() - s.offered_ns < kMeetNs;
}

// The pipe, whose other end the carrier takes.
bool make_pipe(int fd, Socket& s) {
  auto pipe = Pipe::create(socket_face::kMemfdName, ring_bytes(), 0);
  if (!pipe) return give_up(fd, s, Why::kNoMemory), false;
  s.pipe = std::move(*pipe);
  add_state(s.mine(), socket_face::kFar);
  add_state(s.theirs(), socket_face::kFar);
  (void)move_high(s.pipe);  // without a descriptor it works on
  if (carry(s)) return true;
  s.pipe = Pipe();
  give_up(fd, s, Why::kOfferLost);
  return false;
}

}  // namespace

void meet_on_other_host(int fd, Socket& s, const Route& route) {
  // A process that shares it cannot follow, and has no carrier of its own for it.
  if (s.inherited.load(std::memory_order_relaxed)) return stay(fd, s, Why::kForked);
  if (!has_carrier()) return stay(fd, s, Why::kNoNetwork);
  if (!meet_far(s, route)) return stay(fd, s, Why::kNoNetwork);
  s.offered_ns = monotonic_ns();
  s.offer_calls.store(0, std::memory_order_relaxed);
  s.become(Socket::State::kOffered);
}

void go_on_far(int fd, Socket& s) {
  const std::uint32_t call = s.offer_calls.fetch_add(1, std::memory_order_relaxed);
  if (s.inherited.load(std::memory_order_relaxed)) return give_up(fd, s, Why::kForked);
  if (!s.pipe && !looks_at(call)) return;
  switch (far_stage(s)) {
    case CarrierStage::kMeeting:
      if (!goes_on(s, call)) give_up(fd, s, Why::kNoPeer);
      return;
    case CarrierStage::kMet:
      if (!make_pipe(fd, s)) return;
      break;
    case CarrierStage::kCarried: break;
    default: return give_up(fd, s, Why::kNoPeer);
  }
  Route route;
  if (!route_of(fd, &route)) return give_up(fd, s, Why::kOfferLost);
  begin_far_bells(fd, s);
  if (enter_pipe(fd, s, route)) wake_carrier(s);  // else at a later call
}

}  // namespace clan::preload

// The hub: calls that come while their transport is unregistered.
//
// A server that has another thread work on a call may take the transport out of libtirpc's sight
// until then (xprt_unregister, xprt_register). By the socket what comes meanwhile waits there. Over
// CLAN it waits in the client's ring, or where it has been gathered, and all behind it: the client
// is deferred. xprt_register says that it is time to look again. It may be called by any thread,
// and what it has registered may have gone again: it does not say which transport.
#include <utility>

#include "server/server.h"

namespace clan::rpc {

// Nobody has taken front_. `registrations`: how many there had been before it was dispatched.
void Hub::defer(std::uint64_t registrations) {
  std::lock_guard lock(mutex_);
  const PeerIndex from = front_->peer;
  front_.reset();
  PeerState* const state = peer(from);
  if (state == nullptr || state->unwanted || real().xprt_register == nullptr) {
    let_go();
    if (peer(from) != nullptr) drop_peer(from, false);
    return;
  }
  taken_apart_.reset();
  state->last_xid.reset();  // it has not been taken
  state->deferred = some_deferred_ = true;
  if (state->gathering != PeerState::Gathering::kWhole) hold(state);
  if (registrations_ != registrations) take_up();  // it may be there since
}

// The message at the front and those behind it.
void Hub::hold(PeerState* from) {
  endpoint_->hold();
  from->held = true;
}

// Those that are not wanted yet are deferred again. The caller has the mutex.
void Hub::take_up() {
  if (!std::exchange(some_deferred_, false)) return;
  for (PeerIndex i = 0; i < peers_.size(); ++i) {
    PeerState* const state = peer(i);
    if (state == nullptr || !std::exchange(state->deferred, false)) continue;
    if (state->gathering == PeerState::Gathering::kWhole) state->ready = some_ready_ = true;
    if (std::exchange(state->held, false)) endpoint_->resume(i);
  }
  endpoint_->ring_fd();
}

// A call that has been gathered, deferred and taken up. The caller has the mutex.
bool Hub::take_ready(Front* front) {
  for (PeerIndex i = 0; some_ready_ && i < peers_.size(); ++i) {
    PeerState* const state = peer(i);
    if (state == nullptr || !std::exchange(state->ready, false)) continue;
    *front = {i, state->gathered_head, state->gathered};
    front->head.go_on = kLast;
    return true;
  }
  some_ready_ = false;
  return false;
}

Hub* Hub::of(SVCXPRT* xprt) {
  const ServiceTransport* const transport = ServiceTransport::of(xprt);
  return transport != nullptr && transport->generation_ == generation() ? transport->hub_ : nullptr;
}

void Hub::registered() {
  std::lock_guard lock(mutex_);
  ++registrations_;
  take_up();
}

}  // namespace clan::rpc

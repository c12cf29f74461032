// Message endpoints: waiting for a message, and telling an event queue or a descriptor of one.
#include <algorithm>

#include "engine/message/message_endpoint.h"

namespace clan::engine {
namespace {

constexpr int kHotLooks = 200;  ///< before recv() checks anything else

}  // namespace

bool MessageEndpointCore::hot_pending() const {
  for (const Peer* peer : hot_) {
    if (peer->connection->readable() || peer->connection->peer_gone()) return true;
  }
  return false;
}

Result<MessageInfo> MessageEndpointCore::recv(std::span<std::byte> buffer,
                                              std::uint64_t deadline_ns) {
  for (;;) {
    // Hot rings first and for a while: a peer in conversation answers within a few cache-line
    // transfers.
    for (int i = 0; i < kHotLooks; ++i) {
      if (hot_pending()) break;
    }
    if (find_front() && !front_.offered && !front_.assembled) [[likely]]
      return take(buffer);
    auto m = try_recv(buffer);
    if (m.ok() || m.error().err != EAGAIN) return m;
    if (auto s = tell_departure(); !s) return s.error();
    Status s;
    const auto asleep = [&] {
      s = sleep(deadline_ns);
      return s.ok();
    };
    if (std::exchange(armed_fd_, false)) waiter_.slept();
    if (waiter_.wait([&] { return something_new(); }, awaited(), deadline_ns, asleep) ==
        WaitResult::kTimedOut) {
      return Error{ETIMEDOUT, "no message in time"};
    }
    if (!s) return s.error();
  }
}

bool MessageEndpointCore::something_new() {
  return hot_pending() || arrivals_->pending() || progress_sends();
}

// The peer of the next ring that will be polled.
PeerHint MessageEndpointCore::awaited() const {
  const std::uint16_t cpu =
      hot_.empty() ? 0 : hot_[next_hot_ % hot_.size()]->connection->peer_cpu();
  return {cpu, false, copied_until_ns_};
}

bool MessageEndpointCore::spin(std::uint64_t deadline_ns) {
  if (std::exchange(armed_fd_, false)) {
    waiter_.slept();
    look_at_cooled();
  }
  return waiter_.spin([&] { return something_new(); }, awaited(), deadline_ns);
}

// Something that no event will announce, as its event has been taken already.
bool MessageEndpointCore::something_told() const {
  return front_.peer != nullptr || !sent_.empty() || !departed_.empty() || !context_->usable();
}

Status MessageEndpointCore::sleep_unspun(std::uint64_t deadline_ns) {
  if (!context_->usable()) return unusable_error();
  if (something_told() || !waiter_.may_sleep()) return {};
  auto slept = sleep(deadline_ns);
  waiter_.slept();
  if (slept.ok() && deadline_ns != kNoDeadline && monotonic_ns() >= deadline_ns &&
      !arrivals_->pending()) {
    return Error{ETIMEDOUT, "no message in time"};
  }
  return slept;
}

bool MessageEndpointCore::arm_fd() {
  if (something_told() || cool()) return false;
  armed_fd_ = arrivals_->arm_fd();
  return armed_fd_;
}

// Everyone becomes cold. True: sends have moved meanwhile, there is something to check.
bool MessageEndpointCore::cool() {
  std::vector<std::uint32_t> tripwires;
  std::vector<Peer*> cooled;
  cooled.swap(hot_);
  // One fence for all; a NIC at a time, as peers of other users have their own.
  for (std::size_t i = 0; i < cooled.size(); ++i) {
    cooled[i]->hot = false;
    tripwires.push_back(cooled[i]->connection->event_tripwire());
    nic::Nic& nic = cooled[i]->connection->nic();
    if (i + 1 == cooled.size() || &cooled[i + 1]->connection->nic() != &nic) {
      nic.arm_all(tripwires);
      tripwires.clear();
    }
  }
  if (!cooled.empty()) cooled_.clear();
  for (Peer* peer : cooled) {
    cooled_.push_back(peer->index);
    if (peer->connection->readable() || peer->connection->room_has_come() ||
        peer->connection->peer_gone()) {
      arrivals_->post(peer->event);
    }
  }
  return progress_sends();
}

// After a sleep: the peers that were hot last. A wake-up is lost where our tables are not what we
// wrote: a child of this process may write there.
void MessageEndpointCore::look_at_cooled() {
  if (arrivals_->pending()) return;
  for (const PeerIndex index : cooled_) {
    Peer* peer = find(index);
    if (peer == nullptr || peer->hot || peer->departed || peer->held != Peer::Held::kNo) continue;
    if (peer->connection->readable() || peer->connection->peer_gone()) arrivals_->post(peer->event);
  }
}

// Offers are answered in a line that the same tripwires cover, so one queue wakes us for all.
Status MessageEndpointCore::sleep(std::uint64_t deadline_ns) {
  if (cool()) return {};
  auto slept = arrivals_->wait_only(deadline_ns);
  look_at_cooled();
  return slept;
}

// --- events --------------------------------------------------------------------------------------

Status MessageEndpointCore::bind_peer(Peer& peer) {
  Connection& c = *peer.connection;
  // Younger than the one that posts to arrivals_, so it fires second: the thread that takes the
  // event finds the peer there.
  auto tripwire = c.add_event_tripwire(user_queue_->index(), user_event_);
  if (!tripwire) return tripwire.error();
  c.also_notify(user_queue_, user_event_);
  c.nic().arm(*tripwire);
  // A peer that writes just now may have walked past the end of the chain before this tripwire was
  // there: it will post to arrivals_ alone, later than the application looks. What it wrote can be
  // seen already.
  if (c.readable() || c.peer_gone()) arrivals_->post(peer.event);
  user_queue_->post(user_event_);
  return {};
}

Status MessageEndpointCore::bind(std::shared_ptr<EventQueueCore> queue, std::uint64_t tag) {
  if (user_queue_) return Error{EBUSY, "the endpoint is registered with an event queue already"};
  auto event = queue->add(EventKind::kMessage, tag);
  if (!event) return event.error();
  {
    std::lock_guard lock(mutex_);
    user_event_ = *event;
    user_queue_ = std::move(queue);
  }
  Status bound;
  for (auto& peer : peers_) {
    if (bound && peer && peer->connection) bound = bind_peer(*peer);
  }
  user_queue_->post(user_event_);
  return bound;
}

}  // namespace clan::engine

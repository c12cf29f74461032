// Message endpoints: messages that both sides work on, and those that are held back.
#include <algorithm>

#include "engine/message/message_endpoint.h"

namespace clan::engine {
bool MessageEndpointCore::shares_messages(PeerIndex to) const {
  Peer* peer = find(to);
  return peer != nullptr && peer->connection->mapped() && !peer->connection->peer_sleeps();
}

std::uint64_t MessageEndpointCore::sent_mark(PeerIndex to) const {
  Peer* peer = find(to);
  return peer == nullptr ? 0 : peer->connection->produced();
}

bool MessageEndpointCore::has_left(PeerIndex to, std::uint64_t mark) const {
  Peer* peer = find(to);
  return peer == nullptr || peer->connection->known_consumed() >= mark;
}

std::atomic<std::uint64_t>* MessageEndpointCore::shared_word(std::size_t offset) {
  const bool there = front_.peer != nullptr && !front_.offered && !front_.assembled &&
                     front_.peer->connection->mapped() && offset <= front_.size &&
                     front_.size - offset >= sizeof(std::uint64_t);
  // a record's payload is aligned
  if (!there || offset % sizeof(std::uint64_t) != 0) return nullptr;
  return reinterpret_cast<std::atomic<std::uint64_t>*>(
      const_cast<std::byte*>(front_.record.payload) + offset);
}

void MessageEndpointCore::hold() {
  if (Peer* peer = std::exchange(front_.peer, nullptr)) peer->held = Peer::Held::kYes;
}

void MessageEndpointCore::resume(PeerIndex index) {
  Peer* peer = find(index);
  if (peer == nullptr) return;
  peer->held = peer->assembled ? Peer::Held::kShowAgain : Peer::Held::kNo;
  arrivals_->post(peer->event);  // it may have become cold meanwhile
}

void MessageEndpointCore::nudge(PeerIndex to) {
  Peer* peer = find(to);
  if (peer != nullptr && peer->connection->mapped()) peer->connection->nudge();
}

bool MessageEndpointCore::has_gone(PeerIndex index) const {
  Peer* peer = find(index);
  return peer == nullptr || peer->connection->peer_gone();
}

}  // namespace clan::engine

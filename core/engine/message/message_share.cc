// Message endpoints: messages that both sides work on, and those that are held back.
#include <algorithm>

#include "engine/message/message_endpoint.h"

namespace clan {

using Held = engine::MessagePeer::Held;

bool MessageEndpoint::shares_messages(PeerIndex to) const {
  const auto* peer = core_->find(to);
  return peer != nullptr && peer->connection->mapped() && !peer->connection->peer_sleeps();
}

std::uint64_t MessageEndpoint::sent_mark(PeerIndex to) const {
  const auto* peer = core_->find(to);
  return peer == nullptr ? 0 : peer->connection->produced();
}

bool MessageEndpoint::has_left(PeerIndex to, std::uint64_t mark) const {
  const auto* peer = core_->find(to);
  return peer == nullptr || peer->connection->known_consumed() >= mark;
}

std::atomic<std::uint64_t>* MessageEndpoint::shared_word(std::size_t offset) {
  const engine::MessageFront& front = core_->front_;
  const bool there = front.peer != nullptr && !front.offered && !front.assembled &&
                     front.peer->connection->mapped() && offset <= front.size &&
                     front.size - offset >= sizeof(std::uint64_t);
  // a record's payload is aligned
  if (!there || offset % sizeof(std::uint64_t) != 0) return nullptr;
  return reinterpret_cast<std::atomic<std::uint64_t>*>(
      const_cast<std::byte*>(front.record.payload) + offset);
}

void MessageEndpoint::hold() {
  if (auto* peer = std::exchange(core_->front_.peer, nullptr)) peer->held = Held::kYes;
}

void MessageEndpoint::resume(PeerIndex index) {
  auto* peer = core_->find(index);
  if (peer == nullptr) return;
  peer->held = peer->assembled ? Held::kShowAgain : Held::kNo;
  core_->arrivals_->post(peer->event);  // it may have become cold meanwhile
}

void MessageEndpoint::nudge(PeerIndex to) {
  const auto* peer = core_->find(to);
  if (peer != nullptr && peer->connection->mapped()) peer->connection->nudge();
}

bool MessageEndpoint::has_gone(PeerIndex index) const {
  const auto* peer = core_->find(index);
  return peer == nullptr || peer->connection->peer_gone();
}

}  // namespace clan

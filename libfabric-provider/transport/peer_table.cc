#include "transport/peer_table.h"

#include "wire/atomic_service.h"
#include "wire/small_access.h"

namespace clan::ofi {

// Here, where its parts are complete types.
Peer::Peer() = default;
Peer::~Peer() = default;

void Peer::forget_replies() {
  replies.clear();
  long_atomic.reset();
}

Peer& PeerTable::named(const Name& name) {
  if (auto known = by_name_.find(name); known != by_name_.end()) return *known->second;
  auto peer = std::make_unique<Peer>();
  peer->name = name;
  return *by_name_.try_emplace(name, std::move(peer)).first->second;
}

void PeerTable::remember(PeerIndex index, Peer& peer) {
  if (by_index_.size() <= index) by_index_.resize(index + 1);
  by_index_[index] = &peer;
  ++peer.connections;
}

void PeerTable::forget_connection(PeerIndex index) {
  if (Peer* peer = std::exchange(by_index_[index], nullptr)) --peer->connections;
}

PeerIndex PeerTable::other_connection(const Peer& peer) const {
  if (peer.connections <= (peer.pending != kNoPeer ? 1u : 0u)) return kNoPeer;
  for (PeerIndex index = 0; index < by_index_.size(); ++index) {
    if (by_index_[index] == &peer && index != peer.pending) return index;
  }
  return kNoPeer;
}

void PeerTable::mark_own() {
  for (auto& [name, peer] : by_name_) {
    // `failure`: the next send is to return it.
    peer->referenced = peer->connections > 0 || peer->pending != kNoPeer || peer->failure != 0 ||
                       peer->replies.backlogged || (peer->accesses && peer->accesses->listed);
  }
}

void PeerTable::forget_unreferenced() {
  for (Peer*& peer : by_address_) {
    if (peer != nullptr && !peer->referenced) peer = nullptr;
  }
  std::erase_if(by_name_, [](const auto& entry) { return !entry.second->referenced; });
  most_ = 2 * by_name_.size() + kFewPeers;
}

}  // namespace clan::ofi

// The peers of an endpoint: by name, by the number of a connection, and by address.
//
// Peers are known by Name, whichever side connected. One that has gone is forgotten once there are
// many such, unless something refers to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/peer.h"

namespace clan::ofi {

inline constexpr std::size_t kFewPeers = 64;  ///< that are remembered although they have gone

class PeerTable {
 public:
  /// The peer of that name, known or new.
  Peer& named(const Name& name);
  std::size_t size() const { return by_name_.size(); }

  // By connection.
  Peer* by_index(PeerIndex index) const {
    return index < by_index_.size() ? by_index_[index] : nullptr;
  }
  PeerIndex end_index() const { return static_cast<PeerIndex>(by_index_.size()); }
  void remember(PeerIndex index, Peer& peer);
  void forget_connection(PeerIndex index);
  /// Another connection with this peer than the one it has yet to accept. kNoPeer: there is none.
  PeerIndex other_connection(const Peer& peer) const;

  // By address. Vector: generation(), find(fi_addr_t) -> const Name*, find(Name) -> fi_addr_t.
  /// Null: there is no such address.
  template <typename Vector>
  Peer* at(fi_addr_t address, Vector& vector) {
    if (address < by_address_.size() && by_address_generation_ == vector.generation()) [[likely]] {
      if (Peer* peer = by_address_[address]) return peer;
    }
    return find(address, vector);
  }
  /// FI_ADDR_NOTAVAIL: it is not in the vector, or there is none.
  template <typename Vector>
  static fi_addr_t address_of(Peer& peer, Vector* vector) {
    const std::uint32_t generation = vector != nullptr ? vector->generation() : 0;
    if (peer.generation != generation) [[unlikely]] {
      peer.generation = generation;
      peer.address = vector != nullptr ? vector->find(peer.name) : FI_ADDR_NOTAVAIL;
    }
    return peer.address;
  }

  // Forgetting: when there are too many, mark_own(), mark those that other rooms refer to
  // (Peer::referenced), then forget_unreferenced().
  bool too_many() const { return by_name_.size() > most_; }
  void mark_own();
  void forget_unreferenced();

 private:
  template <typename Vector>
  Peer* find(fi_addr_t address, Vector& vector) {
    // The generation first, as another process may change a vector that has a name.
    const std::uint32_t generation = vector.generation();
    const Name* name = vector.find(address);
    if (name == nullptr) return nullptr;
    if (by_address_generation_ != generation) {
      by_address_.clear();
      by_address_generation_ = generation;
    }
    if (by_address_.size() <= address) by_address_.resize(address + 1);
    return by_address_[address] = &named(*name);
  }

  std::unordered_map<Name, std::unique_ptr<Peer>, NameHash> by_name_;
  std::vector<Peer*> by_index_;
  std::vector<Peer*> by_address_;
  std::uint32_t by_address_generation_ = 0;
  std::size_t most_ = kFewPeers;
};

}  // namespace clan::ofi

#include "engine/context/node_claims.h"

namespace clan::engine {

// Where the number belongs: there, if it was not known.
NodeClaims::Place& NodeClaims::place_of(NodeId node, const std::string& address) {
  auto known = places_.find(node.value);
  if (known == places_.end()) {
    if (places_.size() >= claims_.size() + kMostIdle)
      std::erase_if(places_, [](const auto& place) { return place.second.links == 0; });
    known = places_.emplace(node.value, Place{address}).first;
  }
  return known->second;
}

bool NodeClaims::add(const nic::Link* link, NodeId node, const std::string& address) {
  Place& place = place_of(node, address);
  const bool believed = place.address == address;
  claims_[link] = {node.value, address, believed};
  if (believed) ++place.links;
  return believed;
}

void NodeClaims::remove(const nic::Link* link) {
  const auto claim = claims_.find(link);
  if (claim == claims_.end()) return;
  if (claim->second.believed) --places_.at(claim->second.node).links;
  claims_.erase(claim);
}

bool NodeClaims::believed(const nic::Link* link) const {
  const auto claim = claims_.find(link);
  return claim == claims_.end() || claim->second.believed;
}

bool NodeClaims::is(const nic::Link* link, NodeId node, const std::string& address) const {
  const auto claim = claims_.find(link);
  return claim != claims_.end() && claim->second.node == node.value &&
         claim->second.address == address;
}

}  // namespace clan::engine

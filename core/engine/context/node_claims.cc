#include "engine/context/node_claims.h"

namespace clan::engine {

// Where the number belongs: there, if it was not known.
NodeClaims::Place& NodeClaims::place_of(NodeId node, const std::string& address) {
  auto known = places_.find(node.value);
  if (known == places_.end()) {
    if (places_.size() - with_links_ >= kMostIdle) forget_the_oldest();
    known = places_.emplace(node.value, Place{address}).first;
  }
  known->second.used = ++clock_;
  return known->second;
}

void NodeClaims::forget_the_oldest() {
  auto oldest = places_.end();
  for (auto it = places_.begin(); it != places_.end(); ++it) {
    if (it->second.links > 0) continue;
    if (oldest == places_.end() || it->second.used < oldest->second.used) oldest = it;
  }
  if (oldest != places_.end()) places_.erase(oldest);
}

bool NodeClaims::add(const nic::Link* link, NodeId node, const std::string& address) {
  Place& place = place_of(node, address);
  const bool believed = place.address == address;
  claims_[link] = {node.value, address, believed};
  if (believed && place.links++ == 0) ++with_links_;
  return believed;
}

void NodeClaims::remove(const nic::Link* link) {
  const auto claim = claims_.find(link);
  if (claim == claims_.end()) return;
  if (claim->second.believed && --places_.at(claim->second.node).links == 0) --with_links_;
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

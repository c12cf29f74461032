#include "engine/context/link_table.h"

#include <algorithm>

#include "clan/detail/dekker.h"
#include "nic/nic.h"

namespace clan::engine {

void LinkTable::add(std::shared_ptr<nic::Link> link) {
  std::lock_guard lock(mutex_);
  if (link->capabilities().mapped) {
    node_claims_.is_here(link->remote_node());
  } else {
    packets_.link_came();
  }
  links_.push_back(std::move(link));
}

bool LinkTable::believe(const nic::Link& link, NodeId node, const std::string& address, bool here) {
  std::lock_guard lock(mutex_);
  if (here) node_claims_.is_here(node);
  return node_claims_.add(&link, node, address);
}

bool LinkTable::remove(const std::shared_ptr<nic::Link>& link) {
  std::lock_guard lock(mutex_);
  node_claims_.remove(link.get());
  arenas_.erase(link.get());  // what the dead peer has mapped is never given to another one
  std::erase_if(services_, [&](const auto& known) {
    const auto found = known.second.link.lock();
    return found == nullptr || found == link;
  });
  return std::erase(links_, link) > 0;
}

std::vector<std::shared_ptr<nic::Link>> LinkTable::all() {
  std::lock_guard lock(mutex_);
  return links_;
}

std::uint64_t LinkTable::settled() {
  std::lock_guard lock(mutex_);
  return static_cast<std::uint64_t>(std::count_if(
      links_.begin(), links_.end(), [](const auto& l) { return l->alive() && l->settled(); }));
}

// The kernel says whose a peer is, so no user can pass for another's node. On other hosts, a holder
// of the pre-shared key counts as our own user, and only the peer says which node it is: so a link
// of this host goes first, no other host has our own node, and NodeClaims decides the rest.
std::shared_ptr<nic::Link> LinkTable::find(NodeId node, uid_t uid) {
  std::lock_guard lock(mutex_);
  const auto find = [&](bool mapped) -> std::shared_ptr<nic::Link> {
    for (const auto& link : links_) {
      if (link->remote_node() == node && link->alive() && link->settled() &&
          link->capabilities().mapped == mapped &&
          (mapped ? link->remote_uid() == uid : node_claims_.believed(link.get()))) {
        return link;
      }
    }
    return nullptr;
  };
  if (auto link = find(true)) return link;
  return node == own_ ? nullptr : find(false);
}

// An existing link of packets to the same process, found by another service. When both nodes
// dialled at once there are two links: the node with the lesser number keeps its own, the other
// takes that. A peer with the same number at another address is another peer.
std::shared_ptr<nic::Link> LinkTable::chosen(const nic::Link& made) {
  const NodeId node = made.remote_node();
  const std::string address = made.remote_address();  // before the lock
  std::lock_guard lock(mutex_);
  const auto fits = [&](const std::shared_ptr<nic::Link>& link) {
    return link && node_claims_.is(link.get(), node, address) && link->alive() && link->settled();
  };
  for (const auto& [service, known] : services_) {
    if (auto link = known.link.lock(); fits(link)) return link;
  }
  if (own_.value <= node.value) return nullptr;
  const auto link = std::find_if(links_.begin(), links_.end(), fits);
  return link == links_.end() ? nullptr : *link;
}

bool LinkTable::peer_alive(const nic::Nic& nic, std::uint32_t slot) {
  std::lock_guard lock(mutex_);
  for (const auto& link : links_) {
    if (link->holds_slot(nic, slot)) return link->alive();
  }
  return false;
}

std::shared_ptr<nic::Link> LinkTable::known(const std::string& name, std::uint32_t* endpoint) {
  std::lock_guard lock(mutex_);
  auto it = services_.find(name);
  if (it == services_.end()) return nullptr;
  auto link = it->second.link.lock();
  if (!link || !link->alive()) return nullptr;
  *endpoint = it->second.endpoint;
  return link;
}

void LinkTable::remember(const std::string& name, const std::shared_ptr<nic::Link>& link,
                         std::uint32_t endpoint) {
  std::lock_guard lock(mutex_);
  services_[name] = {link, endpoint};
}

void LinkTable::forget(const nic::Link& link, std::uint32_t endpoint) {
  std::lock_guard lock(mutex_);
  std::erase_if(services_, [&](const auto& known) {
    return known.second.endpoint == endpoint && known.second.link.lock().get() == &link;
  });
}

std::shared_ptr<RegionArena> LinkTable::arena(const nic::Link* link) {
  std::lock_guard lock(mutex_);
  const bool there = std::any_of(links_.begin(), links_.end(),
                                 [link](const auto& known) { return known.get() == link; });
  // One that has gone meanwhile: nobody would take it out again, and another may get its address.
  if (!there) return std::make_shared<RegionArena>();
  auto& arena = arenas_[link];
  if (!arena) arena = std::make_shared<RegionArena>();
  return arena;
}

namespace {
std::uint32_t generation_of(const nic::Nic& nic, std::uint32_t aperture) {
  // relaxed: ours
  return static_cast<std::uint32_t>(
      nic.image().tables->apertures[aperture].generation.load(std::memory_order_relaxed));
}
}  // namespace

Status LinkTable::revoke(nic::Nic& nic, std::uint32_t aperture) {
  const std::uint32_t generation = generation_of(nic, aperture);
  Status s = nic.revoke(aperture, [&](std::uint32_t slot) { return peer_alive(nic, slot); });
  if (s) announce_revoked(nic, aperture, generation);
  return s;
}

void LinkTable::retire(nic::Nic& nic, std::uint32_t aperture) {
  const std::uint32_t generation = generation_of(nic, aperture);
  nic.retire(aperture);
  announce_revoked(nic, aperture, generation);
}

void LinkTable::announce_revoked(const nic::Nic& nic, std::uint32_t aperture,
                                 std::uint32_t generation) {
  if (!packets_.linked()) return;  // a peer that a link brings later has no handle of this aperture
  std::lock_guard lock(mutex_);
  for (const auto& link : links_) {
    if (link->remote_uid() == nic.peers_uid()) link->announce_revoked(aperture, generation);
  }
}

bool LinkTable::help_one(std::atomic<std::uint64_t>& help_wanted) {
  // PAIR job.help: cleared before the check of the links, so a later job sets it again
  dekker::announce(help_wanted, 0);
  // At most one link is helped per call, without the lock: a copy takes its time.
  std::shared_ptr<nic::Link> wants;
  {
    std::lock_guard lock(mutex_);
    for (const auto& link : links_) {
      if (!link->wants_help()) continue;
      if (wants) {  // more than one: come back for the others
        // PAIR job.help: set for the next call
        dekker::announce(help_wanted, 1);
        break;
      }
      wants = link;
    }
  }
  return wants && wants->help();
}

void LinkTable::abandon_after_fork() {
  for (const auto& link : links_) link->abandon_after_fork();
}

}  // namespace clan::engine

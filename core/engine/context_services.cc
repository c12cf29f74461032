// ContextCore's names: services that others find here, and the links to those found elsewhere.
#include <unistd.h>

#include <algorithm>

#include "clan/log.h"
#include "engine/context_core.h"
#include "engine/network.h"

namespace clan::engine {
namespace {

Error no_network() {
  return {EHOSTUNREACH, "a service of another host needs ContextOptions::network enabled"};
}

}  // namespace

// --- offered here --------------------------------------------------------------------------------

Status ContextCore::add_service(const std::string& service, std::uint32_t endpoint) {
  if (!usable()) return unusable_error();
  if (service.empty() || service.find('\0') != std::string::npos) {
    return Error{EINVAL, "a service name must not be empty or contain a zero byte"};
  }
  if (Network::is_remote(service)) {
    return Error{EINVAL,
                 "a service name must not begin with \"udp:\", which is for those of other hosts"};
  }
  auto listener = listen_abstract(service_name(uid_, service));
  if (!listener && listener.error().err == EADDRINUSE) {
    return Error{EADDRINUSE,
                 "another listener or endpoint offers this service already: end it (`ss -xlp` "
                 "shows whose it "
                 "is) or take another name"};
  }
  if (!listener && listener.error().err == ENAMETOOLONG) return service_name_too_long();
  if (!listener) return listener.error();
  CLAN_DEBUG("service \"%s\" is offered", service.c_str());
  auto rendezvous = std::make_shared<Rendezvous>(*this, std::move(*listener), endpoint);
  if (auto s = reactor_.add(rendezvous->fd(), rendezvous); !s) return s;
  auto teller = network_ ? network_->tell_port_of(service) : nullptr;
  std::lock_guard lock(mutex_);
  services_[service] = {rendezvous, rendezvous->fd(), endpoint, std::move(teller)};
  return {};
}

void ContextCore::remove_service(const std::string& service) {
  Service gone;
  std::unique_lock lock(mutex_);
  auto it = services_.find(service);
  if (it == services_.end()) return;
  gone = std::move(it->second);
  services_.erase(it);
  lock.unlock();
  reactor_.remove(gone.fd);
  if (network_ && gone.teller) network_->forget(gone.teller);
  // The driver may be in a call of it; the name is free when that has returned.
  while (!reactor_.on_reactor_thread() && gone.listener.use_count() > 1) ::usleep(20);
}

Status ContextCore::listen_as_node() {
  {
    std::lock_guard lock(mutex_);
    if (listens_as_node_) return {};
  }
  auto listener = listen_abstract(node_name(uid_, node_));
  if (!listener) {
    // Another thread of this process was faster: the name is ours, nobody else knows the node's
    // number.
    std::lock_guard lock(mutex_);
    return listens_as_node_ ? Status() : listener.error();
  }
  auto rendezvous = std::make_shared<Rendezvous>(*this, std::move(*listener), 0);
  if (auto s = reactor_.add(rendezvous->fd(), rendezvous); !s) return s;
  std::lock_guard lock(mutex_);
  listens_as_node_ = true;
  services_["node/" + std::to_string(node_.value)] = {rendezvous, rendezvous->fd(), 0, nullptr};
  return {};
}

bool ContextCore::find_service(const std::string& service, std::uint32_t* endpoint) {
  std::lock_guard lock(mutex_);
  auto it = services_.find(service);
  if (it == services_.end()) return false;
  *endpoint = it->second.endpoint;
  return true;
}

// --- found elsewhere -----------------------------------------------------------------------------

Result<std::shared_ptr<nic::Link>> ContextCore::dial(const std::string& name, uid_t owner,
                                                     std::uint64_t deadline_ns,
                                                     std::uint32_t* endpoint) {
  if (!usable()) return unusable_error();
  auto peer = link::dial(
      name, owner, node_, doorbell_.get(), [this](uid_t uid) { return lane(uid); }, deadline_ns,
      endpoint);
  if (!peer) return peer.error();
  return link_with(std::move(*peer));
}

// A peer has answered our hello.
Result<std::shared_ptr<nic::Link>> ContextCore::link_with(link::ShmPeer peer) {
  // Somebody else may have linked us with that node in the meantime, or under another name.
  // (A link with ourselves has its other end in the same table, so we always keep the one just
  // made. A link of packets does not do: that its peer is this node only the peer says.)
  auto known = peer.node == node_ ? nullptr : find_link(peer.node, peer.credentials.uid);
  if (known && known->capabilities().mapped) {
    end_dial(peer);
    return known;
  }
  nic::Nic* nic = lane(peer.credentials.uid);
  auto link = std::make_shared<link::ShmLink>(std::move(peer), *nic, *this, reactor_,
                                              link::ShmLink::Options{options_.direct_copy});
  if (auto s = begin(link); !s) return s.error();
  link->confirm();
  announce_queue_fds(*link);
  return std::static_pointer_cast<nic::Link>(link);
}

void ContextCore::end_dial(const link::ShmPeer& peer) {
  lane(peer.credentials.uid)->remove_peer_slot(peer.peer_slot);
}

// A link of packets to the same process that takes the place of one just made, if there is any:
// another service of it may have been asked for before. Where both nodes have dialled at once there
// are two, and if each gave up its own there would be none: the node of the lesser number keeps its
// own, the other takes that. A peer of the same number at another address is another one.
std::shared_ptr<nic::Link> ContextCore::chosen_link(const nic::Link& made) {
  const NodeId node = made.remote_node();
  const std::string address = made.remote_address();  // before the lock
  std::lock_guard lock(mutex_);
  const auto fits = [&](const std::shared_ptr<nic::Link>& link) {
    return link && far_nodes_.is(link.get(), node, address) && link->alive() && link->settled();
  };
  for (const auto& [service, known] : known_services_) {
    if (auto link = known.link.lock(); fits(link)) return link;
  }
  if (node_.value <= node.value) return nullptr;
  const auto link = std::find_if(links_.begin(), links_.end(), fits);
  return link == links_.end() ? nullptr : *link;
}

std::shared_ptr<nic::Link> ContextCore::known_link(const std::string& service, uid_t uid,
                                                   std::uint32_t* endpoint) {
  std::lock_guard lock(mutex_);
  auto it = known_services_.find(service_name(uid, service));
  if (it == known_services_.end()) return nullptr;
  auto link = it->second.link.lock();
  if (!link || !link->alive()) return nullptr;
  *endpoint = it->second.endpoint;
  return link;
}

Result<link::ShmPeer> ContextCore::begin_dial(const std::string& service, uid_t uid) {
  auto peer = link::begin_dial(service_name(uid, service), uid, node_, doorbell_.get(),
                               [this](uid_t peers) { return lane(peers); });
  if (!peer && peer.error().err == ENAMETOOLONG) return service_name_too_long();
  return peer;
}

Result<std::shared_ptr<nic::Link>> ContextCore::dialled(link::ShmPeer peer,
                                                        const std::string& service,
                                                        std::uint32_t endpoint) {
  const uid_t uid = peer.credentials.uid;
  auto link = link_with(std::move(peer));
  if (!link) return link;
  std::lock_guard lock(mutex_);
  known_services_[service_name(uid, service)] = {*link, endpoint};
  return link;
}

Result<std::shared_ptr<nic::Link>> ContextCore::link_to_service(const std::string& service,
                                                                uid_t uid,
                                                                std::uint64_t deadline_ns,
                                                                std::uint32_t* endpoint,
                                                                bool* remembered) {
  if (auto link = known_link(service, uid, endpoint)) {
    if (remembered != nullptr) *remembered = true;
    return link;
  }
  const std::string name = service_name(uid, service);
  auto link = Network::is_remote(service) ? link_to_host(service, deadline_ns, endpoint)
                                          : dial(name, uid, deadline_ns, endpoint);
  if (!link) {
    CLAN_INFO("no link to service \"%s\" of user %u: %s", service.c_str(),
              static_cast<unsigned>(uid), link.error().message().c_str());
    if (link.error().err == ENAMETOOLONG) return service_name_too_long();
    return link;
  }
  std::lock_guard lock(mutex_);
  known_services_[name] = {*link, *endpoint};
  return link;
}

Result<std::shared_ptr<nic::Link>> ContextCore::link_to_host(const std::string& service,
                                                             std::uint64_t deadline_ns,
                                                             std::uint32_t* endpoint) {
  if (!usable()) return unusable_error();
  if (!network_) return no_network();
  auto link = network_->link_to(service, deadline_ns, endpoint);
  if (!link) return link;
  return keep_link(std::move(*link));
}

// A link of packets that was just made, or the one that takes its place.
std::shared_ptr<nic::Link> ContextCore::keep_link(std::shared_ptr<nic::Link> link) {
  if (auto known = chosen_link(*link)) {
    link->shut_down();
    return known;
  }
  add_far_link(link);
  return link;
}

Result<std::shared_ptr<udp::Dialling>> ContextCore::begin_far_dial(const std::string& service,
                                                                   uid_t uid, DialEnded ended) {
  if (!usable()) return unusable_error();
  if (!network_) return no_network();
  return network_->begin_link_to(
      service, [this, service, uid, ended = std::move(ended)](
                   Result<std::shared_ptr<nic::Link>> made, std::uint32_t endpoint) {
        if (!made) return ended(made, endpoint);
        auto link = keep_link(std::move(*made));
        {
          std::lock_guard lock(mutex_);
          known_services_[service_name(uid, service)] = {link, endpoint};
        }
        ended(std::move(link), endpoint);
      });
}

void ContextCore::end_far_dial(udp::Dialling& dialling) { network_->give_up(dialling); }

bool ContextCore::forget_service(const nic::Link& link, std::uint32_t endpoint) {
  std::lock_guard lock(mutex_);
  return std::erase_if(known_services_, [&](const auto& known) {
           return known.second.endpoint == endpoint && known.second.link.lock().get() == &link;
         }) > 0;
}

Result<std::shared_ptr<nic::Link>> ContextCore::link_to_node(NodeId node, uid_t uid,
                                                             std::uint64_t deadline_ns) {
  if (auto known = find_link(node, uid)) return known;
  std::uint32_t endpoint = 0;
  auto link = dial(node_name(uid, node), uid, deadline_ns, &endpoint);
  if (!link) {
    CLAN_INFO("no link to a node of user %u: %s", static_cast<unsigned>(uid),
              link.error().message().c_str());
    if (link.error().err == ECONNREFUSED) {
      return Error{ECONNREFUSED,
                   "no process answers at this address: the one that gave it has ended"};
    }
  }
  if (link.ok() && (*link)->remote_node() != node) {
    return Error{ECONNREFUSED, "another node answers under that address"};
  }
  return link;
}

}  // namespace clan::engine

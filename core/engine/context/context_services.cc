// ContextCore's names: services that others find here, and the links to those found elsewhere.
#include <unistd.h>

#include "clan/detail/log.h"
#include "clan/detail/system_call.h"
#include "engine/context/context_core.h"
#include "engine/context/network.h"

namespace clan::engine {
namespace {

Error no_network() {
  return {EHOSTUNREACH, "a service of another host needs ContextOptions::network enabled"};
}

Result<std::shared_ptr<nic::Link>> dial_host(ContextCore& context, const std::string& service,
                                             std::uint64_t deadline_ns, std::uint32_t* endpoint) {
  if (!context.usable()) return unusable_error();
  if (context.network() == nullptr) return no_network();
  return context.network()->link_to(service, deadline_ns, endpoint);
}

}  // namespace

// --- offered here --------------------------------------------------------------------------------

Result<std::shared_ptr<Acceptor>> ContextCore::listen(const std::string& name,
                                                      std::uint32_t endpoint) {
  auto listener = listen_abstract(name);
  if (!listener) return listener.error();
  auto acceptor = std::make_shared<Acceptor>(std::move(*listener), [this, endpoint](Fd client) {
    on_client(std::move(client), endpoint);
  });
  if (auto s = reactor_.add(acceptor->fd(), acceptor); !s) return s.error();
  return acceptor;
}

Status ContextCore::add_service(const std::string& service, std::uint32_t endpoint) {
  if (!usable()) return unusable_error();
  if (service.empty() || service.find('\0') != std::string::npos) {
    return Error{EINVAL, "a service name must not be empty or contain a zero byte"};
  }
  if (Network::is_remote(service)) {
    return Error{EINVAL,
                 "a service name must not begin with \"udp:\", which is for those of other hosts"};
  }
  if (services_.find(far_name(service)))
    return Error{EADDRINUSE, "this process offers this service already, or a file of that name"};
  auto listener = listen(service_name(uid_, service), endpoint);
  if (!listener && listener.error().err == EADDRINUSE) {
    return Error{EADDRINUSE,
                 "another listener or endpoint offers this service already: end it (`ss -xlp` "
                 "shows whose it "
                 "is) or take another name"};
  }
  if (!listener && listener.error().err == ENAMETOOLONG) return service_name_too_long();
  if (!listener) return listener.error();
  CLAN_DEBUG("service \"%s\" is offered", service.c_str());
  auto teller = network_ ? network_->tell_port_of(far_name(service)) : nullptr;
  (void)services_.add(far_name(service), {std::move(*listener), endpoint, std::move(teller)});
  return {};
}

void ContextCore::remove_service(const std::string& service) {
  if (!usable()) return;  // a fork's, or gone with the context
  const auto gone = services_.take(far_name(service));
  if (!gone) return;
  const int fd = gone->listener->fd();
  reactor_.remove(fd);
  if (is_file_service(service)) end_listener(fd, service);
  if (gone->teller) reactor_.remove(gone->teller->fd());
  // The driver may be in a call of it; the name is free when that has returned.
  while (!reactor_.on_reactor_thread() && gone->listener.use_count() > 1) ::usleep(20);
}

Status ContextCore::listen_as_node() {
  const std::string name = "node/" + std::to_string(node_.value);
  if (services_.find(name)) return {};
  auto listener = listen(node_name(uid_, node_), 0);
  // Another thread was faster: nobody else knows the number.
  if (!listener) return services_.find(name) ? Status() : listener.error();
  (void)services_.add(name, {std::move(*listener), 0, nullptr});
  return {};
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
  // Another thread may have linked us with that node meanwhile, or under another name. (A link with
  // ourselves has both ends in this table: keep the new one. A link of packets will not do: only
  // its peer says that it is this node.)
  auto known = peer.node == node_ ? nullptr : links_.find(peer.node, peer.credentials.uid);
  if (known && known->capabilities().mapped) {
    end_dial(peer);
    return known;
  }
  return begin_link(std::move(peer), false);
}

void ContextCore::end_dial(const link::ShmPeer& peer) {
  lane(peer.credentials.uid)->remove_peer_slot(peer.peer_slot);
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
  links_.remember(service_name(uid, service), *link, endpoint);
  return link;
}

Result<std::shared_ptr<nic::Link>> ContextCore::link_to_service(const std::string& service,
                                                                uid_t uid,
                                                                std::uint64_t deadline_ns,
                                                                std::uint32_t* endpoint) {
  const std::string name = service_name(uid, service);
  if (auto link = links_.known(name, endpoint)) return link;
  const bool far = Network::is_remote(service);
  auto link = far ? dial_host(*this, service, deadline_ns, endpoint)
                  : dial(name, uid, deadline_ns, endpoint);
  if (!link) {
    CLAN_INFO("no link to service \"%s\" of user %u: %s", service.c_str(),
              static_cast<unsigned>(uid), link.error().message().c_str());
    if (link.error().err == ENAMETOOLONG) return service_name_too_long();
    return link;
  }
  if (far) *link = keep_link(std::move(*link));
  links_.remember(name, *link, *endpoint);
  return link;
}

// A link of packets that was just made, or the one that takes its place.
std::shared_ptr<nic::Link> ContextCore::keep_link(std::shared_ptr<nic::Link> link) {
  if (auto known = links_.chosen(*link)) {
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
        links_.remember(service_name(uid, service), link, endpoint);
        ended(std::move(link), endpoint);
      });
}

Result<std::shared_ptr<nic::Link>> ContextCore::link_to_node(NodeId node, uid_t uid,
                                                             std::uint64_t deadline_ns) {
  if (auto known = links_.find(node, uid)) return known;
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

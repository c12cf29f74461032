#include "endpoint.h"

#include <clan/detail/log.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "connection.h"
#include "omni.h"
#include "reference.h"
#include "tcp_ports.h"

namespace clan::orb {
namespace {

/// The endpoint that offers TCP ports: the first of the process.
struct First {
  std::mutex mutex;
  Endpoint* endpoint = nullptr;
  unsigned known = 0;  ///< endpoints of the ORB that have been checked
};
First& first() {
  static First* const first = new First;
  return *first;
}

/// 0 if it is none.
std::uint16_t tcp_port(const char* endpoint) {
  if (std::strncmp(endpoint, "giop:tcp:", 9) != 0) return 0;
  const char* colon = std::strrchr(endpoint, ':');
  return static_cast<std::uint16_t>(std::strtoul(colon + 1, nullptr, 10));
}

/// A reference must name a host. Where the program has no endpoint that gives it one, this one
/// does, and no port.
void name_some_host() {
  for (const auto* endpoint : omni::omniObjAdapter::options.endpoints) {
    if (std::strncmp(endpoint->uri, kPrefix.data(), kPrefix.size()) != 0) return;
  }
  char host[HOST_NAME_MAX + 1] = {};
  if (::gethostname(host, sizeof host - 1) != 0) std::strcpy(host, "localhost");
  IIOP::Address address;
  address.host = static_cast<const char*>(host);
  address.port = 0;
  omniIOR::add_IIOP_ADDRESS(address, nullptr);
}

// The program's own endpoints need descriptors for connections, and the ORB for its threads.
bool leaves_descriptors() {
  std::array<int, 8> spare;
  for (int& fd : spare) fd = ::eventfd(0, EFD_CLOEXEC);
  const bool enough = spare.back() >= 0;
  for (const int fd : spare) {
    if (fd >= 0) ::close(fd);
  }
  return enough;
}

}  // namespace

Endpoint::Endpoint(const Name& name) : name_(name), text_(name.address()) {}

Endpoint::~Endpoint() {
  if (generation_ != Node::generation()) {
    new std::shared_ptr<Node>(std::move(node_));  // the parent's: not to be ended here
    return;
  }
  std::lock_guard lock(first().mutex);
  if (first().endpoint == this) first().endpoint = nullptr;
}

Status Endpoint::listen() {
  auto node = Node::get();
  if (!node) return node.error();
  auto watcher = Watcher::create((*node)->context());
  if (!watcher) return watcher.error();
  auto listener = Listener::create((*node)->context(), service_name(name_.word));
  if (!listener) return listener.error();
  if (auto s = (*watcher)->add(*listener); !s) return s;
  if (options().added_endpoint && !leaves_descriptors())
    return Error{EMFILE, "descriptors for other connections"};
  node_ = *node;
  watcher_ = *watcher;
  listener_.emplace(std::move(*listener));
  return {};
}

void Endpoint::refuse(const std::string& uri, const std::string& why) {
  if (!omniORB::trace(1)) return;
  omniORB::logger log;
  log << uri.c_str() << ": " << why.c_str() << "\n";
}

_CORBA_Boolean Endpoint::Bind() {
  if (auto s = listen(); !s) {
    const std::string why = s.error().message();
    if (!options().added_endpoint) {
      refuse(std::string(kPrefix) + name_.word, why);
      return 0;
    }
    CLAN_LOG_AT(LogLevel::kError, "CORBA calls of this process's objects come without CLAN: %s",
                why.c_str());
    Node::release();  // what it has taken others need
    return 1;
  }
  addresses_.length(1);
  addresses_[0] = text_.c_str();
  std::lock_guard lock(first().mutex);
  if (first().endpoint == nullptr) {
    first().endpoint = this;
    first().known = 0;
  }
  return 1;
}

_CORBA_Boolean Endpoint::publish(const omni::orbServer::PublishSpecs& specs, _CORBA_Boolean,
                                 _CORBA_Boolean, omni::orbServer::EndpointList& published) {
  bool wanted = false;
  for (CORBA::ULong i = 0; i < specs.length(); ++i) {
    const char* spec = specs[i];
    // Added by ourselves it is published beside whatever the program publishes of its own.
    wanted = wanted || std::strncmp(spec, kPrefix.data(), kPrefix.size()) == 0 ||
             (!no_publish() && (std::strcmp(spec, "addr") == 0 || options().add_endpoint));
  }
  if (!wanted || !listener_) return 0;
  if (!omni::omniObjAdapter::endpointInList(text_.c_str(), published)) {
    publish_in_references(name_);
    name_some_host();
    published.length(published.length() + 1);
    published[published.length() - 1] = text_.c_str();
  }
  return 1;
}

// --- TCP ports -----------------------------------------------------------------------------------

// The ORB's list grows under a lock of the ORB that we cannot take; it is complete when the ORB
// begins to serve.
void Endpoint::offer_ports() {
  std::lock_guard lock(first().mutex);
  Endpoint* endpoint = first().endpoint;
  const auto& all = omni::omniObjAdapter::listMyEndpoints();
  if (endpoint == nullptr || endpoint->generation_ != Node::generation() ||
      all.length() == first().known)
    return;
  first().known = all.length();
  const auto sockets = own_listening_sockets();
  for (CORBA::ULong i = 0; i < all.length(); ++i) {
    const std::uint16_t port = tcp_port(all[i]);
    for (const ListeningSocket& socket : sockets) {
      if (port != 0 && socket.port == port) endpoint->offer(port, socket.inode);
    }
  }
}

void Endpoint::offer(std::uint16_t port, std::uint64_t inode) {
  const std::string service = port_service_name(port, inode);
  std::lock_guard lock(ports_mutex_);
  if (ports_.count(service) != 0) return;
  auto listener = Listener::create(node_->context(), service);
  if (!listener || !watcher_->add(*listener)) return;
  ports_.emplace(service, std::move(*listener));
}

// --- connections ---------------------------------------------------------------------------------

omni::giopConnection* Endpoint::made(Stream stream) {
  auto channel = std::make_shared<Channel>(node_, std::move(stream), false);
  // Rules of servers check the host that a call comes from.
  const std::string& remote = channel->peer().address;
  auto* connection = new Connection(
      channel, text_, remote.empty() ? passing_address() : std::string(kPrefix) + remote);
  // else it is not selectable: the ORB closes it if it has to be
  (void)channel->watch_by(watcher_, connection);
  CLAN_INFO("CORBA calls of process %d come by CLAN, %s (%s)",
            static_cast<int>(channel->peer().pid), channel->peer().path, connection->peeraddress());
  return connection;
}

omni::giopConnection* Endpoint::accept_one() {
  if (auto stream = listener_->try_accept(); stream.ok()) return made(std::move(*stream));
  std::lock_guard lock(ports_mutex_);
  for (auto& [service, listener] : ports_) {
    if (auto stream = listener.try_accept(); stream.ok()) return made(std::move(*stream));
  }
  return nullptr;
}

omni::giopConnection* Endpoint::AcceptAndMonitor(omni::giopConnection::notifyReadable_t tell,
                                                 void* cookie) {
  if (!listener_) poked_.wait(false);
  offer_ports();
  while (!poked_.exchange(false)) {
    if (auto* connection = accept_one()) return connection;
    if (!watcher_->wait(tell, cookie)) return nullptr;
  }
  return nullptr;
}

void Endpoint::Poke() {
  poked_ = true;
  poked_.notify_one();
  if (watcher_ && generation_ == Node::generation()) watcher_->poke();
}

void Endpoint::Shutdown() {
  CLAN_DEBUG("%s ends", text_.c_str());
  delete this;
}

}  // namespace clan::orb

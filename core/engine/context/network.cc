#include "engine/context/network.h"

#include <unistd.h>

#include "clan/detail/clock.h"
#include "clan/detail/log.h"
#include "engine/context/context_core.h"
#include "link/udp/io/socket_io.h"
#include "link/udp/node/udp_link.h"
#include "link/udp/wire/security.h"
#include "link/udp/xdp/packet_choice.h"

namespace clan::engine {
namespace {

/// for some more of what has been sent to be acknowledged
constexpr std::uint64_t kGoodBye = 2 * udp::kSecond;
constexpr std::uint64_t kUrgentCredit = 4 << 20;
constexpr std::size_t kMostAddresses = 1024;  ///< remembered

// The enumerators of each are the same, in the same order.
constexpr udp::Packets packets_of(NetworkOptions::Packets packets) {
  return static_cast<udp::Packets>(packets);
}
static_assert(packets_of(NetworkOptions::Packets::kSockets) == udp::Packets::kSockets &&
              packets_of(NetworkOptions::Packets::kXdp) == udp::Packets::kXdp &&
              packets_of(NetworkOptions::Packets::kAuto) == udp::Packets::kAuto);
constexpr udp::Mode udp_mode(NetworkOptions::Mode mode) { return static_cast<udp::Mode>(mode); }
static_assert(udp_mode(NetworkOptions::Mode::kOff) == udp::Mode::kOff &&
              udp_mode(NetworkOptions::Mode::kIntegrity) == udp::Mode::kIntegrity &&
              udp_mode(NetworkOptions::Mode::kEncrypt) == udp::Mode::kEncrypt);

struct RemoteName {
  std::string host, service;  ///< host: with a port, or not
};

Result<RemoteName> split(const std::string& name) {
  const auto slash = name.find('/');
  if (slash == std::string::npos || slash <= 4 || slash + 1 == name.size()) {
    return Error{EINVAL,
                 "a service of another host is named udp:HOST/SERVICE or udp:HOST:PORT/SERVICE"};
  }
  return RemoteName{name.substr(4, slash - 4), name.substr(slash + 1)};
}

// "host", "host:port", "[::1]", "[::1]:port"
bool has_port(const std::string& host) {
  const auto bracket = host.rfind(']');
  return host.find(':', bracket == std::string::npos ? 0 : bracket) != std::string::npos;
}

}  // namespace

// --- life ----------------------------------------------------------------------------------------

Network::Network(ContextCore& context, const NetworkOptions& options)
    : context_(context), options_(options) {}
Network::~Network() = default;

Result<std::unique_ptr<Network>> Network::start(ContextCore& context,
                                                const NetworkOptions& options) {
  auto network = std::make_unique<Network>(context, options);
  if (auto s = network->start(); !s) return s.error();
  return network;
}

Status Network::start() {
  udp::SocketAddress local;
  if (!options_.address.empty()) {
    auto address = udp::parse_address(options_.address.c_str());
    if (!address) return address.error();
    local = *address;
  }
  if (auto path_stats = udp::PathStatsPage::create(udp_mode(options_.mode)); path_stats.ok()) {
    path_stats_ = std::move(*path_stats);
  } else {
    CLAN_INFO("`clan stat` shows no paths of this process: %s",
              path_stats.error().message().c_str());
  }
  auto node = make_node(local, false);
  if (!node) return node.error();
  node_ = std::move(*node);
  if (path_stats_) path_stats_->set_port(port());
  CLAN_INFO("reachable from other hosts at UDP port %u, %s", port(),
            options_.mode == NetworkOptions::Mode::kOff         ? "neither checked nor encrypted"
            : options_.mode == NetworkOptions::Mode::kIntegrity ? "checked, not encrypted"
                                                                : "encrypted");
  if (options_.directory_port != 0) join_directory();
  return {};
}

Result<std::shared_ptr<udp::UdpNode>> Network::make_node(const udp::SocketAddress& local,
                                                         bool directory) {
  auto security = udp::load_security(udp_mode(options_.mode), options_.key_file);
  if (!security) return security.error();
  // The directory's packets are few.
  const auto packets = directory ? udp::Packets::kSockets : packets_of(options_.packets);
  auto io = udp::open_packets(local, packets);
  if (!io) return io.error();
  udp::Options options;
  options.packet_window = (*io)->packets_of_room();
  options.credit[0] = kUrgentCredit;
  udp::NodeOwner owner;
  owner.node = context_.node();
  owner.uid = context_.owner(-1);
  owner.nic = &context_.own_lane();
  owner.sink = &context_;
  owner.reactor = &context_.reactor();
  owner.find_service = [this, directory](const std::string& service, udp::Greeting* answer) {
    return find_service(service, directory, answer);
  };
  if (!directory) owner.path_stats = path_stats_.get();
  owner.on_link = [this, directory](std::shared_ptr<nic::Link> link) {
    // The directory's clients go on to a port.
    if (!directory) context_.add_far_link(std::move(link));
  };
  return udp::UdpNode::create(std::move(owner), std::move(*io), std::move(*security), options);
}

void Network::shut_down() {
  node_->shut_down(kGoodBye);
  std::lock_guard lock(mutex_);
  if (directory_) directory_->shut_down(0);
}

void Network::abandon_after_fork() {
  node_->abandon_after_fork();
  if (path_stats_) path_stats_->abandon_after_fork();
  if (directory_) directory_->abandon_after_fork();
}

// --- services ------------------------------------------------------------------------------------

// The address of the directory of "HOST". The resolver may take long, so the driver thread, which
// redials services whose owner has gone, uses what was found first.
Result<udp::SocketAddress> Network::address_of(std::string host) {
  if (!has_port(host)) {
    if (options_.directory_port == 0) {
      return Error{EINVAL, "without a directory port, a service is named udp:HOST:PORT/SERVICE"};
    }
    host += ":" + std::to_string(options_.directory_port);
  }
  if (context_.reactor().on_reactor_thread()) {
    std::lock_guard lock(addresses_mutex_);
    const auto known = addresses_.find(host);
    return known != addresses_.end() ? known->second : udp::parse_numeric_address(host.c_str());
  }
  auto found = udp::parse_address(host.c_str());
  if (!found) return found;
  std::lock_guard lock(addresses_mutex_);
  if (addresses_.size() >= kMostAddresses) addresses_.clear();
  addresses_[host] = *found;
  return found;
}

Result<std::shared_ptr<nic::Link>> Network::link_to(const std::string& service,
                                                    std::uint64_t deadline_ns,
                                                    std::uint32_t* endpoint) {
  auto name = split(service);
  if (!name) return name.error();
  auto address = address_of(name->host);
  if (!address) return address.error();
  auto found = node_->dial(*address, name->service, deadline_ns);
  if (!found) return found.error();
  *endpoint = found->peer.endpoint;
  return std::static_pointer_cast<nic::Link>(found->link);
}

Result<std::shared_ptr<udp::Dialling>> Network::begin_link_to(const std::string& service,
                                                              Ended ended) {
  auto name = split(service);
  if (!name) return name.error();
  auto address = address_of(name->host);
  if (!address) return address.error();
  return node_->begin_dial(
      *address, name->service, [ended = std::move(ended)](Result<udp::Dialled> found) {
        if (!found) return ended(found.error(), 0);
        ended(std::static_pointer_cast<nic::Link>(found->link), found->peer.endpoint);
      });
}

// Asks for an aperture that nobody has exported: the peer's link answers by itself.
Result<PathValues> Network::ping(const std::string& host, std::span<std::uint64_t> round_trips_ns,
                                 std::uint32_t interval_ms, std::uint64_t deadline_ns) {
  auto address = address_of(host);
  if (!address) return address.error();
  auto found = node_->dial(*address, "", deadline_ns);
  if (!found) return found.error();
  RdmaCookie nobodys;
  nobodys.node = found->link->remote_node();
  for (std::uint64_t& trip : round_trips_ns) {
    if (&trip != round_trips_ns.data()) ::usleep(interval_ms * 1000);
    const std::uint64_t begin = monotonic_ns();
    auto answer = found->link->import(nobodys, true);
    const int err = answer.ok() ? 0 : answer.error().err;
    if (err == ECONNRESET || err == ETIMEDOUT) return answer.error();
    trip = monotonic_ns() - begin;
  }
  const PathValues path = found->link->path();
  found->link->shut_down();
  return path;
}

}  // namespace clan::engine

namespace clan {

Result<PathValues> ping(Context& context, const std::string& host,
                        std::span<std::uint64_t> round_trips_ns, std::uint32_t interval_ms,
                        std::int64_t timeout_ms) {
  engine::Network* network = context.core()->network();
  if (network == nullptr) {
    return Error{EHOSTUNREACH, "the path to another host needs ContextOptions::network enabled"};
  }
  return network->ping(host, round_trips_ns, interval_ms, deadline_after_ms(timeout_ms));
}

Status xdp_possible(const std::string& host) {
  if (host.empty()) return udp::xdp_possible(nullptr);
  const auto to = udp::parse_address((engine::has_port(host) ? host : host + ":1").c_str());
  return to ? udp::xdp_possible(&*to) : to.error();
}

}  // namespace clan

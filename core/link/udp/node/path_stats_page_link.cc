// UdpLink: what it shows of its path.
#include <cstring>

#include "link/udp/node/udp_link.h"
#include "link/udp/node/udp_node.h"

namespace clan::udp {

PathValues UdpLink::path() const {
  PathValues v;
  if (node_->abandoned()) return v;
  std::lock_guard lock(node_->mutex_);
  if (connection_ == nullptr) return v;
  const ConnectionCounters& c = connection_->counters();
  const SocketAddress& peer = connection_->address();
  std::memcpy(v.ip, peer.ip.data(), sizeof v.ip);
  v.port = peer.port;
  v.pid = peer_.pid;
  v.packets = static_cast<std::uint64_t>(node_->io_->path_to(peer));
  v.round_trip_ns = connection_->rtt().smoothed();
  v.least_round_trip_ns = connection_->rtt().least();
  v.packet_bytes = connection_->mtu().current();
  v.window_bytes = connection_->congestion().window();
  v.packets_sent = c.packets_sent;
  v.packets_received = c.packets_received;
  v.packets_lost = c.lost - c.spurious;
  v.timeouts = c.timeouts;
  return v;
}

std::uint64_t UdpLink::packets() const {
  if (node_->abandoned()) return 0;
  std::lock_guard lock(node_->mutex_);
  if (connection_ == nullptr) return 0;
  return connection_->counters().packets_sent + connection_->counters().packets_received;
}

std::string UdpLink::remote_address() const {
  if (node_->abandoned()) return {};
  std::lock_guard lock(node_->mutex_);
  return connection_ == nullptr ? std::string() : to_string(connection_->address());
}

}  // namespace clan::udp

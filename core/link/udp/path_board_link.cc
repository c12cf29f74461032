// UdpLink: what PathBoard and PathReport have of it.
#include <cstring>

#include "link/udp/udp_link.h"
#include "link/udp/udp_node.h"

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

PathReport UdpLink::report() const {
  PathReport r;
  if (node_->abandoned()) return r;
  std::lock_guard lock(node_->mutex_);
  if (connection_ == nullptr) return r;
  const PathValues v = path();
  r.address = to_string(connection_->address());
  r.packets = name_of(static_cast<PacketPath>(v.packets));
  r.round_trip_ns = v.round_trip_ns;
  r.least_round_trip_ns = v.least_round_trip_ns;
  r.packet_bytes = static_cast<std::uint32_t>(v.packet_bytes);
  r.window_bytes = v.window_bytes;
  r.packets_sent = v.packets_sent;
  r.packets_received = v.packets_received;
  r.packets_lost = v.packets_lost;
  r.timeouts = v.timeouts;
  return r;
}

}  // namespace clan::udp

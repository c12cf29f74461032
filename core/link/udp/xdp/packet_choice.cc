#include "link/udp/xdp/packet_choice.h"

#include "clan/detail/log.h"
#include "link/udp/io/socket_io.h"
#include "link/udp/xdp/xdp_io.h"

namespace clan::udp {

Result<std::unique_ptr<PacketIo>> open_packets(const SocketAddress& local, Packets packets) {
  auto sockets = SocketIo::open(local, {});
  if (!sockets) return sockets.error();
  if (packets == Packets::kSockets) return std::unique_ptr<PacketIo>(std::move(*sockets));
  Status possible = XdpProgram::possible();
  if (possible) {
    auto xdp = XdpIo::open(*sockets);
    if (xdp) return std::unique_ptr<PacketIo>(std::move(*xdp));
    possible = xdp.error();
  }
  if (packets == Packets::kXdp) return possible.error();
  CLAN_INFO("packets go by UDP sockets, not by AF_XDP: %s", possible.error().message().c_str());
  return std::unique_ptr<PacketIo>(std::move(*sockets));
}

Status xdp_possible(const SocketAddress* to) {
  if (const Status possible = XdpProgram::possible(); !possible) return possible;
  auto kernel = Rtnetlink::open();
  if (!kernel) return kernel.error();
  if (to == nullptr) return {};
  if (!is_ipv4(*to)) return Error{EAFNOSUPPORT, "packets by IPv6 go by the UDP sockets"};
  const auto route = kernel->route(ipv4_of(*to), {});
  if (!route) {
    return Error{
        ENETUNREACH,
        "packets there go by no device of Ethernet: it is this host, or there is no route"};
  }
  const auto device = kernel->device(route->device);
  if (!device || !device->ethernet || !device->up) {
    return Error{ENODEV,
                 "the device that packets there leave by is not Ethernet, a tunnel for instance"};
  }
  if (device->mtu < kBasePacket + kIpHeaders)
    return Error{EMSGSIZE, "the device's packets are smaller than 1200 bytes"};
  return XdpProgram::usable(*device);
}

}  // namespace clan::udp

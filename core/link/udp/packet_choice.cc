#include "link/udp/packet_choice.h"

#include "clan/log.h"
#include "link/udp/socket_io.h"
#include "link/udp/xdp_io.h"

namespace clan::udp {

Result<std::unique_ptr<PacketIo>> open_packets(const SocketAddress& local, Packets packets) {
  auto sockets = SocketIo::open(local, {});
  if (!sockets) return sockets.error();
  if (packets == Packets::kSockets) return std::unique_ptr<PacketIo>(std::move(*sockets));
  if (const Status possible = XdpProgram::possible(); !possible) {
    if (packets == Packets::kXdp) return possible.error();
    CLAN_INFO("packets go by UDP sockets, not by AF_XDP: %s", possible.error().message().c_str());
    return std::unique_ptr<PacketIo>(std::move(*sockets));
  }
  auto xdp = XdpIo::open(std::move(*sockets), {});
  if (xdp) return std::unique_ptr<PacketIo>(std::move(*xdp));
  if (packets == Packets::kXdp) return xdp.error();
  CLAN_INFO("packets go by UDP sockets, not by AF_XDP: %s", xdp.error().message().c_str());
  // Anew: those have ended with it.
  sockets = SocketIo::open(local, {});
  if (!sockets) return sockets.error();
  return std::unique_ptr<PacketIo>(std::move(*sockets));
}

}  // namespace clan::udp

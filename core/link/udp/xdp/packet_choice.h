// Which PacketIo a context has: UDP sockets, or AF_XDP beside them.
#pragma once

#include <memory>

#include "link/udp/io/packet_io.h"

namespace clan::udp {

/// NetworkOptions::Packets.
enum class Packets { kSockets, kXdp, kAuto };

/// Binds to `local`; port 0: any. kXdp fails where it is not possible; kAuto then has the sockets
/// alone, and says why in the log.
Result<std::unique_ptr<PacketIo>> open_packets(const SocketAddress& local, Packets packets);

/// Whether AF_XDP could send to that host (null: any). Asks the kernel; attaches and sends nothing.
Status xdp_possible(const SocketAddress* to);

}  // namespace clan::udp

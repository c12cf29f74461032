// Which PacketIo a context has: UDP sockets, or AF_XDP beside them.
#pragma once

#include <memory>

#include "link/udp/io/packet_io.h"

namespace clan::udp {

/// NetworkOptions::Packets.
enum class Packets { kSockets, kXdp, kAuto };

/// Bound to `local`; port 0: any. An Error for kXdp where this process may not or this kernel
/// cannot; kAuto then has the sockets alone, and says why in the log.
Result<std::unique_ptr<PacketIo>> open_packets(const SocketAddress& local, Packets packets);

/// Whether this process could send packets to that host by AF_XDP (null: to any), and if not why.
/// Asks the kernel; attaches nothing, and sends nothing.
Status xdp_possible(const SocketAddress* to);

}  // namespace clan::udp

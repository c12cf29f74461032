// A ping-pong of two bare AF_XDP sockets, with nothing above them: what XdpIo is measured by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "link/udp/wire/socket_address.h"

namespace clan::udp {

/// Answers messages of `bytes` at a port; never ends.
[[noreturn]] void serve_bare_xdp(const SocketAddress& local, std::size_t bytes);
/// Round trips, ns. Both ends poll.
std::vector<std::uint64_t> ping_bare_xdp(const SocketAddress& to, std::size_t bytes,
                                         double seconds);

}  // namespace clan::udp

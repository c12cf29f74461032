// SocketAddress: an IPv6 address (IPv4 as ::ffff:a.b.c.d), a port and a scope. A plain value.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string>

#include "clan/result.h"

namespace clan::udp {

struct SocketAddress {
  std::array<std::uint8_t, 16> ip{};
  std::uint16_t port = 0;   ///< host order
  std::uint32_t scope = 0;  ///< of a link-local address: the interface
  friend bool operator==(const SocketAddress&, const SocketAddress&) = default;
};

/// Where an IPv4 address lies in the last 4 bytes.
inline constexpr std::array<std::uint8_t, 16> kMappedIpv4 = {0, 0, 0, 0, 0,    0,
                                                             0, 0, 0, 0, 0xff, 0xff};

/// As the kernel has it.
SocketAddress socket_address(const sockaddr_storage& address);
/// Whether the address is in ::ffff:0:0/96.
bool is_ipv4(const SocketAddress& address);
/// Any address of the host: :: or 0.0.0.0.
bool is_wildcard(const SocketAddress& address);
/// "10.0.0.1:4790", "[fe80::1]:4790".
std::string to_string(const SocketAddress& address);
/// "127.0.0.1:4000", "[::1]:4000", "host:4000". Asks the resolver for names: may wait.
Result<SocketAddress> parse_address(const char* text);
/// Does not ask, nor wait: ENOENT for a name.
Result<SocketAddress> parse_numeric_address(const char* text);

}  // namespace clan::udp

// SocketAddress: an IPv6 address (IPv4 as ::ffff:a.b.c.d), a port and a scope. A plain value.
#pragma once

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

/// "10.0.0.1:4790", "[fe80::1]:4790".
std::string to_string(const SocketAddress& address);
/// "127.0.0.1:4000", "[::1]:4000", "host:4000". Asks the resolver for names: may wait.
Result<SocketAddress> parse_address(const char* text);
/// Does not ask, nor wait: ENOENT for a name.
Result<SocketAddress> parse_numeric_address(const char* text);

}  // namespace clan::udp

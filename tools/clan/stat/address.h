// Addresses of TCP connections, as /proc/net/tcp and the pages of pipes have them.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace clan::tool {

/// IPv4 as ::ffff:a.b.c.d, so that a connection between an IPv6 and an IPv4 socket has equal ends.
struct Address {
  std::array<unsigned char, 16> ip{};
  std::uint16_t port = 0;
  auto operator<=>(const Address&) const = default;
};

struct TcpPair {
  Address local;
  Address remote;
  auto operator<=>(const TcpPair&) const = default;
  TcpPair mirrored() const { return {remote, local}; }
};

/// `ip` in network order: 4 bytes with `v4`, else 16.
Address make_address(const void* ip, bool v4, std::uint16_t port);
/// "0100007F:1F90" of /proc/net/tcp, or its longer form of tcp6.
std::optional<Address> parse_address(std::string_view text);
std::string to_string(const Address& address);
std::string with_port(const Address& address);

}  // namespace clan::tool

// Addresses. To programs an endpoint is a sockaddr_in or sockaddr_in6; to us it is a Name: where a
// host is our own, the port alone, whichever of the host's addresses the program used.
//
// So the ports of this provider's endpoints are one space per host (network namespace) and user,
// beside those of TCP and UDP.
#pragma once

#include <netinet/in.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

#include "system/provider.h"

namespace clan::ofi {

/// A sockaddr_in or sockaddr_in6 and its length.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  std::uint16_t port() const;
  void set_port(std::uint16_t port);
  bool is_any() const;
  bool valid() const { return length != 0; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

struct Name {
  std::uint64_t high = 0, low = 0;  ///< the host's address; 0 for our own
  std::uint16_t port = 0;
  bool local() const { return high == 0 && low == 0; }
  friend auto operator<=>(const Name&, const Name&) = default;
};

struct NameHash {
  std::size_t operator()(const Name& name) const {
    return std::hash<std::uint64_t>()(name.high * 31 + name.low * 7 + name.port);
  }
};

/// Reads what a program gives as an address. Not valid() where it is none.
SocketAddress read_address(const void* address, std::size_t length);
Name name_of(const SocketAddress& address);
/// The same, whether or not the host is our own: how others know it.
Name outer_name_of(const SocketAddress& address);
/// Returns the address to send to for a name that is not local().
SocketAddress address_of(const Name& name);
/// "10.0.0.1", "[2001:db8::1]".
std::string host_text(const Name& name);
bool is_loopback(const SocketAddress& address);

/// What FI_SOCKADDR_IN and its like take in an address vector.
std::size_t address_bytes(std::uint32_t format);

/// Node and service as fi_getinfo() and fi_av_insertsvc() take them. -FI_ENODATA and the like.
int resolve(const char* node, const char* service, std::uint64_t flags, std::uint32_t format,
            bool passive, SocketAddress* address);

/// This host's address for others to see: that of FI_CLAN_INTERFACE, or the first that is not the
/// loopback's, else that.
SocketAddress own_address(int family);
/// The address from which our packets to another host leave, with port 0. Not valid(): they do not.
SocketAddress source_towards(const SocketAddress& host);

/// "fi_sockaddr_in://127.0.0.1:7471".
std::string to_text(const SocketAddress& address);

}  // namespace clan::ofi

// Network addresses: a host, as IPv6 or mapped IPv4, and a discriminator, bytes that the programs
// agree on. Programs keep them unaligned.
#pragma once

#include <sys/socket.h>
#include <vipl.h>

#include <array>
#include <cstdint>
#include <string>

#include "wire.h"

namespace clan::via {

using HostAddress = std::array<std::uint8_t, kHostBytes>;

struct NetAddress {
  HostAddress host{};
  std::array<std::uint8_t, kMostDiscriminator> discriminator{};
  std::uint32_t discriminator_bytes = 0;
  bool operator==(const NetAddress&) const = default;
};

/// False: null, or of other lengths than VipQueryNic() names. An address of this host becomes
/// own_address().
bool read_address(const VIP_NET_ADDRESS* address, NetAddress* read);
void write_address(const NetAddress& address, VIP_NET_ADDRESS* written);

/// The address of this host that others would use.
const HostAddress& own_address();
bool is_own(const HostAddress& host);

/// The engine's name of the service that waits at a discriminator of this host, and of that on
/// `host`, for a process of this one.
std::string service_of(const NetAddress& address);
std::string place_of_service(const HostAddress& host, const std::string& service);
/// Names the service of a pair that connects as peers: `serves` is the end that serves, `asks` the
/// other.
std::string service_of_pair(const NetAddress& serves, const NetAddress& asks);

HostAddress mapped(std::uint32_t ipv4_network_order);
HostAddress address_of(const sockaddr& from);  ///< of AF_INET or AF_INET6
std::string text_of(const HostAddress& host);

/// What a NIC can do.
const VIP_NIC_ATTRIBUTES& limits();

}  // namespace clan::via

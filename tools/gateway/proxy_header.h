// PROXY protocol, versions 1 and 2: the client of a connection, said before its first byte.
// https://www.haproxy.org/download/2.8/doc/proxy-protocol.txt
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "address.h"

namespace clan::gateway {

/// Both ends of a connection, as a header has them.
struct ProxyAddresses {
  Address source, destination;
};

enum class ProxyVersion { kNone, kV1, kV2 };

/// What the first bytes of a connection are.
struct ProxyHeader {
  enum class State { kMore, kWrong, kWhole } state = State::kMore;
  std::size_t bytes = 0;   ///< of the header, when it is whole
  const char* wrong = "";  ///< why it is none
  /// None: a health check (LOCAL), an unknown family, or AF_UNIX; then the connection's own count.
  std::optional<ProxyAddresses> addresses;
  std::string tlvs{};  ///< of version 2, but for its checksum and padding
};

/// A header that is longer is refused: room for 16 bytes, two addresses of AF_UNIX and some TLVs.
constexpr std::size_t kMostProxyHeader = 2048;

/// Reads a header at the beginning of `bytes`.
ProxyHeader read_proxy_header(std::string_view bytes);

/// Writes one. Addresses that are not of TCP are sent as unknown. `tlvs` goes into version 2 only.
std::string proxy_header(ProxyVersion version, const ProxyAddresses& addresses,
                         const std::string& tlvs = "");
/// The header of a connection that is the gateway's own: a health check.
std::string local_proxy_header(ProxyVersion version);

}  // namespace clan::gateway

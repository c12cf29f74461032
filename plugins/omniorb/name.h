// Names: what stands in addresses, endpoints and references.
//
//     giop:clan:<host>:<uid>-<name>      an endpoint: service "giop.<name>" of that user on this host
//     giop:clan:<host>:tcp-<port>        whoever of this host listens at <host>:<port>, if it has an endpoint
//
// <host> is numeric and one of this machine's: transport rules look at it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace clan::orb {

constexpr std::string_view kPrefix = "giop:clan:";
constexpr std::string_view kThisHost = "127.0.0.1";

struct Name {
  std::string host{kThisHost};
  uid_t uid = 0;
  std::string name;            ///< empty: by port
  std::uint16_t port = 0;      ///< by port

  std::string address() const;
  /// What follows "giop:clan:" in an address.
  static std::optional<Name> parse(std::string_view text);
  /// What follows "giop:clan:" in the description of an endpoint: nothing, a name, or an address.
  static std::optional<Name> of_endpoint(std::string_view text);
};

/// Of the machine's boot and its network namespace: processes that agree on it may find each other.
std::uint64_t host_id();

/// The name of a service of the engine.
std::string service_name(std::string_view name);
/// The same of the socket that listens at a TCP port, by its inode.
std::string port_service_name(std::uint16_t port, std::uint64_t inode);

}  // namespace clan::orb

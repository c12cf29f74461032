// Names in addresses, endpoints and references.
//
// omniORB's transport rules take an address apart as host:number and end the program when they
// cannot. So a name, which has a user and any word in it, goes by a number in the addresses of this
// process: the same name by the same number, as the ORB compares addresses by their text. A number
// is a name's as long as somebody has the name: the ORB's references and ropes do, by their
// addresses.
//
//     giop:clan:<host>:<port>                     what listens at this TCP port of this host, if
//                                                 it has an endpoint
//     giop:clan:[::ffff:127.0.0.1]:<number>       a named endpoint; rules take it for 127.0.0.1
//     giop:clan:<host>:<number>                   one of another host, by the UDP link; rules see
//                                                 that host
//
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace clan::orb {

constexpr std::string_view kPrefix = "giop:clan:";
constexpr std::string_view kThisHost = "127.0.0.1";

/// Returns the host of "HOST:PORT" or "[HOST]:PORT", without brackets. Empty: it is neither.
std::string_view host_of(std::string_view text);
/// An address of IPv4 or IPv6, which nobody has to ask a name service for.
bool is_numeric(std::string_view host);

struct Name {
  uid_t uid = 0;
  /// of an endpoint: service "giop.<word>" of that user; empty: by port
  std::string word;
  std::string link;  ///< on another host: "HOST:PORT" of its UDP link, the host numeric
  std::string host;  ///< by port: numeric, one of this machine's
  /// the port, or what stands for the word in this process; 0: nothing known by it
  std::uint16_t number = 0;
  std::shared_ptr<const void> hold;  ///< on the number of a word

  std::string address() const;
  /// In references: <uid>-<word>.
  std::string text() const { return std::to_string(uid) + "-" + word; }
  /// `link`: of a reference from another host.
  static std::optional<Name> of_text(std::string_view text, std::string_view link = {});
  /// What follows "giop:clan:" in an address.
  static std::optional<Name> of_address(std::string_view text);
  /// What follows "giop:clan:" in the description of an endpoint: nothing, or a word.
  static std::optional<Name> of_endpoint(std::string_view text);
};

/// The address of a peer that has none: a number that no other of this process's last 65536 has.
std::string passing_address();

/// Identifies the machine's boot and its network namespace: processes with the same id may find
/// each other.
std::uint64_t host_id();

/// The name of a service of the engine.
std::string service_name(std::string_view word);
/// The same of the socket that listens at a TCP port, by its inode.
std::string port_service_name(std::uint16_t port, std::uint64_t inode);

}  // namespace clan::orb

// Which sockets listen at TCP ports: references without our component (corbaloc) name a host and a
// port, and the process that listens there says by the socket's inode that it can be reached over
// CLAN as well.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace clan::orb {

struct ListeningSocket {
  std::uint16_t port = 0;
  std::uint64_t inode = 0;
  uid_t uid = 0;
};

/// This process's own.
std::vector<ListeningSocket> own_listening_sockets();

/// Finds the socket to which a connection to host:port would go, `host` being numeric and one of
/// this machine's. Nothing if nobody listens, if it may be one of several, or if the kernel does
/// not say.
std::optional<ListeningSocket> find_listening_socket(const std::string& host, std::uint16_t port);

}  // namespace clan::orb

// Whose sockets of this network namespace are, as the kernel says: by their numbers in our user
// namespace. Any thread; nothing here waits.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "clan/detail/tcp_diag.h"

namespace clan {

/// Returns the user of the process that has connected or accepted the TCP socket at `local` that is
/// connected to `remote`. Nothing: there is none, or the kernel is not to be asked (sock_diag,
/// AF_NETLINK).
std::optional<uid_t> tcp_owner(const TcpEnd& local, const TcpEnd& remote);

/// Returns the user of the process that has made the UDP socket that is bound to the port, at
/// whatever address. Nothing: there is none, or no /proc.
std::optional<uid_t> udp_port_owner(std::uint16_t port);

}  // namespace clan

// Owners of sockets of this network namespace, in ids of our user namespace. Any thread; no waits.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "clan/detail/tcp_diag.h"

namespace clan {

/// Returns the user whose process connected or accepted the TCP socket `local` - `remote`. Nothing:
/// there is none, or the kernel may not be asked (sock_diag, AF_NETLINK).
std::optional<uid_t> tcp_owner(const TcpEnd& local, const TcpEnd& remote);

/// Returns the user whose process made the UDP socket bound to the port. Nothing: none or no /proc.
std::optional<uid_t> udp_port_owner(std::uint16_t port);

}  // namespace clan

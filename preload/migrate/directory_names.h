// Names of offers in a directory (CLAN_DIR).
#pragma once

#include <sys/un.h>

#include <cstdint>

#include "os/sock_diag.h"

namespace clan::preload {

/// Two connections of the same name would stand in each other's way, and not be taken for each
/// other. Never 0.
std::uint64_t name_of(const Endpoint& client, const Endpoint& server);

int unix_socket(int type);

/// Nobody has this socket any more: its process was killed. Asks by a socket of another type, which
/// the kernel refuses in one way when there is somebody and in another when not, and of which
/// nobody there hears.
bool is_left_over(const sockaddr_un& path, socklen_t size);

/// Removes what killed processes have left behind, some of it, now and then.
void sweep();

}  // namespace clan::preload

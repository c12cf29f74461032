// Names and files of offers in a directory (CLAN_DIR).
#pragma once

#include <sys/types.h>
#include <sys/un.h>

#include <cstdint>
#include <optional>

#include "kernel/sock_diag.h"

namespace clan::preload {

/// Two connections of the same name would stand in each other's way, and not be taken for each
/// other. Never 0.
std::uint64_t name_of(const Endpoint& client, const Endpoint& server);

int unix_socket(int type);

/// Nobody has this socket any more: its process was killed. Asks by a socket of another type, which
/// the kernel refuses in one way when there is somebody and in another when not, and of which
/// nobody there hears.
bool is_left_over(const sockaddr_un& path, socklen_t size);

/// `socket` is connected to the socket that has been bound to that name, by the file of that name.
/// False: there is none. Links are not followed, and a file that has another name too, or had
/// another one, is none.
bool connect_to_offer(int socket, std::uint64_t name);

/// `listener` listens at the file of that name, which has that mode whatever our umask is. False,
/// with errno: it does not, and this user has no such file.
bool bind_offer(int listener, std::uint64_t name, mode_t mode);

/// Removes what killed processes have left behind, some of it, now and then. How many names it has
/// read; none: it has been done a moment ago.
std::optional<int> sweep();

/// Limits one sweep: others may have made a million names.
constexpr int kMostNamesRead = 8192;

}  // namespace clan::preload

// Names and files of offers in a directory (CLAN_DIR).
#pragma once

#include <sys/types.h>
#include <sys/un.h>

#include <cstdint>
#include <optional>

#include "kernel/sock_diag.h"

namespace clan::preload {

/// Hashes the addresses; never 0. Connections with the same hash block each other, but are not
/// confused.
std::uint64_t name_of(const Endpoint& client, const Endpoint& server);

/// Makes a socket that does not block.
int unix_socket(int type);

/// Tells whether the owner of the socket was killed. Connects with another type: the kernel's errno
/// depends on whether there is an owner, which does not notice.
bool is_left_over(const sockaddr_un& path, socklen_t size);

/// Connects to the socket that was bound to that name, by the file of that name. False: there is
/// none. Does not follow links, nor use a file that has, or had, another name.
bool connect_to_offer(int socket, std::uint64_t name);

/// Makes `listener` listen at the file of that name, with that mode whatever our umask is. False,
/// with errno: no file is left.
bool bind_offer(int listener, std::uint64_t name, mode_t mode);

/// Removes some files that killed processes have left behind. Returns how many names it has read;
/// none: the last sweep was a moment ago.
std::optional<int> sweep();

/// Limits a sweep: other users may make a million names.
constexpr int kMostNamesRead = 8192;

}  // namespace clan::preload

// The owner of the other end of a connection, by the kernel's word.
#pragma once

#include <cstdint>

#include "clan/face/reasons.h"
#include "kernel/sock_diag.h"
#include "state/socket.h"

namespace clan::preload {

/// Tells whether the other end is on this host. Addresses do not say: asks the kernel, once.
bool same_host(Socket& s, const Route& r);

/// Tells why the connection `fd` is not in the network namespace of the calling thread and
/// `kernel`; or kNone.
reasons::Why not_here(SockDiag& kernel, int fd, const Route& route);

/// Tells why the process at the other end of `rendezvous` may not share memory with us; kNone if it
/// may, as it owns the other end of the connection `fd`.
reasons::Why why_untrusted(int fd, int rendezvous, const Route& route);

/// Returns the inode of the socket at the other end; 0: the kernel does not say.
std::uint32_t inode_of_other_end(int fd);

}  // namespace clan::preload

// Whose the other end of a connection is, by the kernel's word.
#pragma once

#include <cstdint>

#include "clan/face/reasons.h"
#include "kernel/sock_diag.h"
#include "state/socket.h"

namespace clan::preload {

/// Two addresses of this host may be as different as those of two hosts; the kernel knows, and is
/// asked once.
bool same_host(Socket& s, const Route& r);

/// Tells why names and questions of the calling thread, which `kernel` is of, would not mean the
/// connection `fd`: kNone if they do.
reasons::Why not_here(SockDiag& kernel, int fd, const Route& route);

/// Tells why the process at the other end of `rendezvous` may not share memory with us: kNone if it
/// owns the other end of the connection `fd`.
reasons::Why why_untrusted(int fd, int rendezvous, const Route& route);

}  // namespace clan::preload

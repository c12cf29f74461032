// Whether the connection that a window shows in another network namespace is ours, seen from its
// other end. See directory.cc.
#pragma once

#include <cstdint>

#include "kernel/sock_diag.h"

namespace clan::preload {

enum class Verdict { kSame, kUnderWay, kOther };

/// Compares the addresses, the state and the counters of both ends. `peer` must own the other one.
Verdict compare(int fd, const Route& r, SockDiag& window, std::uint32_t interface, uid_t peer);

/// Finds the user at the other end of a rendezvous. Tells whether we may share memory with it.
bool allowed_peer(int rendezvous, uid_t* uid);

}  // namespace clan::preload

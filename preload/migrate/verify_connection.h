// Is the connection that a window shows in another network namespace ours, seen from its other end?
// See directory.cc.
#pragma once

#include <cstdint>

#include "kernel/sock_diag.h"

namespace clan::preload {

enum class Verdict { kSame, kUnderWay, kOther };

/// Its owner is to be `peer`.
Verdict compare(int fd, const Route& r, SockDiag& window, std::uint32_t interface, uid_t peer);

/// The user at the other end of a rendezvous, if we may share memory with it.
bool allowed_peer(int rendezvous, uid_t* uid);

}  // namespace clan::preload

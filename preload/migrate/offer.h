// Offers between the ends of one network namespace; see policy.h.
#pragma once

#include <cerrno>

#include "clan/face/reasons.h"
#include "clan/result.h"
#include "kernel/sock_diag.h"
#include "state/socket.h"

namespace clan::preload {

/// Whether a setting or a filter keeps the connection on TCP; records the reason.
bool is_kept(int fd, Socket& s, const Route& route);

/// Client: offers. Records no reason for connections to other hosts, which never move.
void offer(int fd, Socket& s);

/// Client: has anybody taken up the offer?
void look_for_taker(int fd, Socket& s);

/// Server: is there an offer?
void look_for_offer(int fd, Socket& s);

/// A pipe that the other end has made cannot be opened.
inline reasons::Why why_not_opened(const Error& error) {
  return error.err == EPROTO ? reasons::Why::kVersion : reasons::Why::kNoMemory;
}

}  // namespace clan::preload

// Offers between the ends of a connection; see policy.h.
#pragma once

#include <cerrno>

#include "clan/face/reasons.h"
#include "clan/result.h"
#include "kernel/sock_diag.h"
#include "state/socket.h"

namespace clan::preload {

/// Client: offers. Records no reason for connections to other hosts, which never move.
void offer(int fd, Socket& s);

/// Client: has anybody taken up the offer?
void look_for_taker(int fd, Socket& s);

/// Server: is there an offer?
void look_for_offer(int fd, Socket& s);

// The same in a directory (CLAN_DIR): the other end is in another network namespace.

/// Client, when the connection is in use: offers.
void offer_in_directory(int fd, Socket& s, const Route& route);

/// Server, at some of its calls: takes up the offer, if there is one.
void claim_in_directory(int fd, Socket& s, const Route& route);

/// Both, at their next calls: what has the other end done?
void go_on_in_directory(int fd, Socket& s);

/// A pipe that the other end has made cannot be opened.
inline reasons::Why why_not_opened(const Error& error) {
  return error.err == EPROTO ? reasons::Why::kVersion : reasons::Why::kNoMemory;
}

}  // namespace clan::preload

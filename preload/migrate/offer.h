// Offers between the ends of a connection; see policy.h.
#pragma once

#include "clan/result.h"
#include "kernel/sock_diag.h"
#include "state/socket.h"

namespace clan::preload {

/// Client: offers. Records no reason for connections to other hosts, which never move.
void offer(int fd, Socket& s);
/// Client: moves if the other end has taken up the offer.
void look_for_taker(int fd, Socket& s);
/// Server: takes up the offer, if there is one.
void look_for_offer(int fd, Socket& s);

/// Do the same in a directory (CLAN_DIR): the other end is in another network namespace.
void offer_in_directory(int fd, Socket& s, const Route& route);
void claim_in_directory(int fd, Socket& s, const Route& route);
/// Both ends, at their next calls: goes on when the other end has done its part.
void go_on_in_directory(int fd, Socket& s);

/// Stays on TCP, as the pipe that the other end has made cannot be opened.
void stay_unopened(int fd, Socket& s, const Error& error);

}  // namespace clan::preload

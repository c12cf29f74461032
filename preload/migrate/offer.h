// Offers between the ends of one network namespace; see policy.h.
#pragma once

#include "os/sock_diag.h"
#include "state/socket.h"

namespace clan::preload {

/// A setting or a filter keeps the connection on TCP, and that is told.
bool is_kept(int fd, Socket& s, const Route& route);

/// Client: offers. Not told: connections to other hosts are no matter of this library.
void offer(int fd, Socket& s);

/// Client: has anybody taken up the offer?
void look_for_taker(int fd, Socket& s);

/// Server: is there an offer?
void look_for_offer(int fd, Socket& s);

constexpr char kNoPeer[] = "the other end runs without CLAN, or may not move";

}  // namespace clan::preload

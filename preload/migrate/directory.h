// Offers in a directory (CLAN_DIR): the other end is in another network namespace.
#pragma once

#include "kernel/sock_diag.h"
#include "state/socket.h"

namespace clan::preload {

/// Client, when the connection is in use: offers.
void offer_in_directory(int fd, Socket& s, const Route& route);

/// Server, at some of its calls: takes up the offer, if there is one.
void claim_in_directory(int fd, Socket& s, const Route& route);

/// Both, at their next calls: what has the other end done?
void go_on_in_directory(int fd, Socket& s);

}  // namespace clan::preload

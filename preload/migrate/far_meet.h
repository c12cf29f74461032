// Connections to another host (CLAN_NET): how they find their other end, and enter a pipe that the
// carrier takes on.
#pragma once

#include "os/sock_diag.h"
#include "state/socket.h"

namespace clan::preload {

/// Client: looks for the other end. Server: waits for it. To be called once, when it is in use.
void meet_on_other_host(int fd, Socket& s, const Route& route);

/// Both, at their next calls: has the other end come?
void go_on_far(int fd, Socket& s);

}  // namespace clan::preload

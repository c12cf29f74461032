// A connection as the log names it: its program, port and peer.
#pragma once

#include "state/socket.h"

namespace clan::preload {

class Named {
 public:
  Named(int fd, const Socket& s);
  /// Returns "redis-server: port 6379 with process 123 (redis-cli), fd 9". The peer's process is
  /// known once there is a pipe.
  const char* text() const { return text_; }
  /// Returns the accepting end's port, which CLAN_EXCEPT takes; 0 if not connected.
  unsigned port() const { return port_; }

 private:
  char text_[128];
  unsigned port_ = 0;
};

}  // namespace clan::preload

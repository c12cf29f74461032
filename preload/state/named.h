// A connection as people know it, for the log: its program, its port, and its other end.
#pragma once

#include "state/socket.h"

namespace clan::preload {

class Named {
 public:
  /// Asks the kernel; for what is said seldom.
  Named(int fd, const Socket& s);
  /// "redis-server: port 6379 with process 123 (redis-cli), fd 9". The other end's process is known
  /// once the connection has a pipe.
  const char* text() const { return text_; }
  /// The port of the end that has accepted: what CLAN_EXCEPT takes. 0: not connected any more.
  unsigned port() const { return port_; }

 private:
  char text_[128];
  unsigned port_ = 0;
};

}  // namespace clan::preload

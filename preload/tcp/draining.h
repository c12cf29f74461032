// The lock under which bytes of TCP are read and counted: doorbells, and the application's from
// before the switch. Threads of all processes of the end take it, as the one that closes the
// counter of receives.
//
// A process that was killed under it may have read bytes and not counted them. The next one takes
// the lock from it, and counts by the kernel's numbers.
#pragma once

#include "state/socket.h"
#include "tcp/call_gate.h"
#include "tcp/tcp_backlog.h"

namespace clan::preload {

class Draining {
 public:
  Draining(int fd, Socket& s) : gate_(s.open_file().receives) {
    if (gate_.took_over()) [[unlikely]]
      recount_doorbells(fd, s);
  }

 private:
  const ClosedGate gate_;
};

}  // namespace clan::preload

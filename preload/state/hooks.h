// Calls from lower rooms to upper ones, which includes do not allow. wiring.cc fills in the table
// at link time; tests put their own functions there.
#pragma once

#include <cstdint>

#include "clan/face/reasons.h"
#include "state/socket.h"

namespace clan::preload {

struct Hooks {
  // To epoll sets (wait/).
  void (*left_descriptor)(Socket& s, int fd);  ///< a descriptor of the socket is closed or reused
  void (*migrated)(Socket& s);                 ///< it has moved into a pipe
  void (*demoted)(Socket& s);                  ///< it has gone back to TCP
  void (*pinned)(Socket& s);                   ///< it stays on TCP for good
  void (*going_back)(Socket& s);               ///< a call gave up waiting for another process
  bool (*lost_bells)(int fd, Socket& s);       ///< its bells are about to close; false: not now
  // To the record of why connections stay on TCP (share/reasons.h).
  void (*said_why)(int fd, Socket& s, reasons::Why why, std::uint32_t number);
  void (*unsaid)(Socket& s);  ///< it has moved, or nobody here holds it
  void (*process_said)(reasons::Why why, std::uint32_t number);
  void (*unseen_use)(reasons::Why why);  ///< see unseen_use()
  // To the connection (stream/).
  void (*last_close)(int fd, Socket& s, bool others);  ///< see shared_close()
};
extern constinit Hooks hooks;

/// Records why the connection stays on TCP or goes back there, for the log and `clan stat --all`.
inline void say_why(int fd, Socket& s, reasons::Why why, std::uint32_t number = 0) {
  hooks.said_why(fd, s, why, number);
}
/// Records the same for all later connections of the process.
inline void say_of_process(reasons::Why why, std::uint32_t number = 0) {
  hooks.process_said(why, number);
}
/// Withdraws what say_why() recorded.
inline void unsay(Socket& s) {
  // relaxed: the last thread that holds the socket, or one that found it unmoved
  if (s.said.load(std::memory_order_relaxed) != reasons::Why::kNone) hooks.unsaid(s);
}

}  // namespace clan::preload

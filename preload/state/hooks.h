// What lower rooms tell upper ones. Calls go downward by includes; these few go upward, by this
// table: wiring.cc fills it in when the library is linked, and tests put functions of their own
// there.
#pragma once

#include <cstdint>

#include "clan/face/reasons.h"
#include "state/socket.h"

namespace clan::preload {

struct Hooks {
  // To epoll sets, which hold sockets (wait/).
  void (*left_descriptor)(Socket& s, int fd);  ///< a descriptor of the socket is closed or reused
  void (*migrated)(Socket& s);                 ///< it has moved into a pipe
  void (*demoted)(Socket& s);                  ///< it has gone back to TCP
  void (*pinned)(Socket& s);                   ///< it stays on TCP for good
  void (*going_back)(Socket& s);               ///< a call has given up its wait for another process
  bool (*lost_bells)(int fd, Socket& s);       ///< they are about to be closed; false: not now
  // To the record of why connections stay on TCP (share/reasons.h).
  void (*said_why)(int fd, Socket& s, reasons::Why why, std::uint32_t number);
  void (*unsaid)(Socket& s);  ///< it has moved, or nobody here has it any more
  void (*process_said)(reasons::Why why, std::uint32_t number);
  void (*unseen_use)(reasons::Why why);  ///< see unseen_use()
  // To the connection (stream/).
  void (*last_close)(int fd, Socket& s, bool others);  ///< see shared_close()
};
extern constinit Hooks hooks;

/// Why the connection stays on TCP, or goes back there, for the log and for `clan stat --all`.
inline void say_why(int fd, Socket& s, reasons::Why why, std::uint32_t number = 0) {
  hooks.said_why(fd, s, why, number);
}
/// Says the same of all connections that the process makes from now on.
inline void say_of_process(reasons::Why why, std::uint32_t number = 0) {
  hooks.process_said(why, number);
}
/// There is nothing to say any more.
inline void unsay(Socket& s) {
  // relaxed: of the last thread that has the socket, or of one that has found it unmoved
  if (s.said.load(std::memory_order_relaxed) != reasons::Why::kNone) hooks.unsaid(s);
}

}  // namespace clan::preload

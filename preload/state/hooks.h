// What lower rooms tell upper ones. Calls go downward by includes; these few go upward, by this table: wiring.cc
// fills it in when the library is linked, and tests put functions of their own there.
#pragma once

#include <cstdint>

#include "state/socket.h"

namespace clan::preload {

struct Hooks {
  // To epoll sets, which hold sockets (wait/).
  void (*left_descriptor)(Socket& s, int fd);  ///< a descriptor of the socket is closed or reused
  void (*migrated)(Socket& s);                 ///< it has moved into a pipe
  void (*demoted)(Socket& s);                  ///< it has gone back to TCP
  void (*pinned)(Socket& s);                   ///< it stays on TCP for good
  bool (*set_sleeps)(const Socket& s, std::uint32_t events);  ///< see watcher_sleeps()
  bool (*put_off)(int fd, Socket& s);          ///< see put_off()
  // To the connection (stream/).
  void (*last_close)(int fd, Socket& s, bool others);  ///< see shared_close()
};
extern constinit Hooks hooks;

/// A thread sleeps in epoll_wait on a set that holds the socket. `events`: and waits for any of these; 0 =
/// all.
inline bool watcher_sleeps(const Socket& s, std::uint32_t events) {
  return s.is_watched() && hooks.set_sleeps(s, events);
}

}  // namespace clan::preload

// How the ends of a connection that moves get their bells (state/socket_migration.h).
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// The bells that one end makes and passes with the pipe: the other end's, and its own to be rung.
///
/// Between processes of one user they are pipes. The reader of a pipe can block its writers, so
/// with another user's process, or on a kernel without an edge for each write, they are timers
/// (timerfd): the ringer sets one that expires at once, which never blocks.
class PassedBells {
 public:
  PassedBells() = default;
  ~PassedBells();
  PassedBells(const PassedBells&) = delete;
  PassedBells& operator=(const PassedBells&) = delete;
  /// Gives `s` its bells, and makes those to pass to the peer of the socket `through`. False: no
  /// room for descriptors, or a peer that is not allowed.
  [[nodiscard]] bool make(Socket& s, int through);
  int count() const { return fds[0] < 0 ? 0 : 2; }
  int fds[2] = {-1, -1};  ///< to be sent, or received
  /// Gives `s` the bells that the other end has made. False: no room, or they are no bells.
  [[nodiscard]] bool adopt(Socket& s, int through);

 private:
  bool make_of_a_kind(Socket& s, int (*bell)());
};

/// Gives the socket of a connection to another host a bell, which the carrier in this process
/// rings. False: no room for descriptors.
[[nodiscard]] bool make_own_bell(Socket& s);

}  // namespace clan::preload

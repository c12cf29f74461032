// How the two ends of a connection that moves get their bells (state/socket_migration.h).
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// What one end makes and passes with the pipe: the other end's bell, and its own to be rung.
///
/// Between processes of one user they are pipes. A process that reads a pipe can keep its writers
/// waiting, so with another user's process, or on a kernel that has no edge for each write, they
/// are timers (timerfd): the ringer sets one that expires at once, which never waits.
class PassedBells {
 public:
  PassedBells() = default;
  ~PassedBells();
  PassedBells(const PassedBells&) = delete;
  PassedBells& operator=(const PassedBells&) = delete;
  /// Gives `s` its bells and has those to pass to the peer of the socket `through`. False: there is
  /// no room for descriptors, or that is nobody this process talks to; the connection does not
  /// move.
  [[nodiscard]] bool make(Socket& s, int through);
  int count() const { return fds[0] < 0 ? 0 : 2; }
  /// For send_descriptors(), and as receive_descriptors() answers.
  int fds[2] = {-1, -1};
  /// The other end has made them. Takes them over. False: there is no room, or they are no bells.
  [[nodiscard]] bool adopt(Socket& s, int through);

 private:
  bool make_of_a_kind(Socket& s, int (*bell)());
};

/// Gives the socket of a connection to another host a bell, which the carrier in this process rings.
/// False: there is no room for descriptors.
[[nodiscard]] bool make_own_bell(Socket& s);

}  // namespace clan::preload

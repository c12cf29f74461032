// How the two ends of a connection that moves get their bells (state/socket_migration.h).
#pragma once

#include "state/socket.h"

namespace clan::preload {

/// What one end makes and passes with the pipe: the other end's bell, and its own to be rung.
class PassedBells {
 public:
  PassedBells() = default;
  ~PassedBells();
  PassedBells(const PassedBells&) = delete;
  PassedBells& operator=(const PassedBells&) = delete;
  /// Gives `s` its bells and has those to pass. Nothing where the process has no /proc or no room
  /// for descriptors, or where the peer of the socket `through` is another user, as a process that
  /// reads a pipe can keep its writers waiting. The connection goes without.
  void make(Socket& s, int through);
  int count() const { return fds[0] < 0 ? 0 : 2; }
  /// For send_descriptors(), and as receive_descriptors() answers.
  int fds[2] = {-1, -1};
  /// The other end has made them. Takes them over, if they are bells.
  void adopt(Socket& s, int through);
};

}  // namespace clan::preload

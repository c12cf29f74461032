// Sleeping at a pipe, and waking the other end (state/socket_migration.h).
#pragma once

#include <poll.h>

#include "state/socket.h"

namespace clan::preload {

/// Wakes the other end, whose sleepers have asked for it. `fd`: of the socket.
void ring(int fd, Socket& s);

/// False, with EBADF: another thread has closed the descriptor, and the number may be another
/// file's by now.
bool still_names(int fd, const Socket& s);

/// A thread is about to sleep on a socket, and on its bell.
///
///   BellSleep bell(s)
///   want_data(), or want_room()
///   poll({socket, watch()})
///   rung()?
///
/// An edge wakes one of the threads that wait for it in one set, so each of them has a set of its
/// own: the first the one that is kept with the socket.
class BellSleep {
 public:
  /// Nothing if the socket has no bell, as one to another host, or if there is no room for a set.
  explicit BellSleep(Socket& s);
  ~BellSleep();
  BellSleep(const BellSleep&) = delete;
  BellSleep& operator=(const BellSleep&) = delete;
  /// False: nobody wakes the thread. It is not to sleep for long.
  explicit operator bool() const { return set_ >= 0; }
  /// What to poll besides the socket; its number, 0 or 1.
  nfds_t watch(pollfd* at) const;
  /// Whether the bell was rung, by `at` as the kernel has answered it. Takes the edge.
  bool rung(const pollfd* at) const;

 private:
  Socket& s_;
  int set_ = -1;
  bool is_kept_ = false;
};

/// The longest sleep of a thread that has no bell.
constexpr int kWithoutBellMs = 10;

}  // namespace clan::preload

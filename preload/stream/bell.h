// Sleeping on a pipe, and waking the peer (state/socket_migration.h).
#pragma once

#include <poll.h>

#include "state/socket.h"

namespace clan::preload {

/// Wakes the peer, whose sleepers have asked for it. `fd`: a descriptor of the socket.
void ring(int fd, Socket& s);

/// Whether `fd` is still the socket. False, with EBADF: another thread has closed it, and the
/// number may be reused.
bool still_names(int fd, const Socket& s);

/// A sleep on a socket and its bell:
///
///   BellSleep bell(s)
///   want_data(), or want_room()
///   poll({socket, watch()})
///   rung()?
///
/// or, to read, `BellSleep bell(s, fd)`, want_data() and, if has_socket(), sleep().
///
/// An edge wakes one thread per epoll set, so each sleeper has its own; the first uses the one kept
/// with the socket.
class BellSleep {
 public:
  /// Watches nothing if the socket has no bell, or there is no room for a set.
  explicit BellSleep(Socket& s, int fd = -1);
  ~BellSleep();
  BellSleep(const BellSleep&) = delete;
  BellSleep& operator=(const BellSleep&) = delete;
  /// False: nobody will wake the thread; it must not sleep long.
  explicit operator bool() const { return set_ >= 0; }
  /// Fills in what to poll besides the socket; returns 0 or 1.
  nfds_t watch(pollfd* at) const;
  /// Whether the bell was rung, from poll()'s answer at `at`. Takes the edge.
  bool rung(const pollfd* at) const;

  struct Woken {
    int rc = 0;  ///< as poll() returns it, with errno
    bool rung = false, by_socket = false;
  };
  /// Whether the set has the socket, too. Only if the process has one thread: a set, unlike poll(),
  /// does not hold the socket open while another thread closes it.
  bool has_socket() const { return has_socket_ && set_ >= 0; }
  /// Sleeps until the bell rings, or TCP has bytes to read or has ended.
  Woken sleep(int timeout_ms) const;

 private:
  Socket& s_;
  int set_ = -1;
  BellSet* kept_ = nullptr;
  const bool has_socket_;
};

/// The longest sleep of a thread that has no bell.
constexpr int kWithoutBellMs = 10;

}  // namespace clan::preload

// Bells: how a thread that sleeps on a socket which has moved is woken without TCP (state/bell.h).
// What has no bell, as another process that has found the pipe by itself, is woken by a doorbell,
// which all that sleep on the socket see; so is whatever watches the socket past this library.
#pragma once

#include <poll.h>

#include "clan/face/pipe.h"
#include "state/socket.h"

namespace clan::preload {

/// Wakes the other end, as `done` of this socket's pipe wants it.
void ring(int fd, Socket& s, const Pipe::Done& done);

/// The same by a doorbell.
void ring_doorbell(int fd, Socket& s);

/// False, with EBADF: another thread has closed the descriptor, and the number may be another
/// file's by now.
bool still_names(int fd, const Socket& s);

/// Rings the other end's bell. False: it has none that this process could ring.
bool ring_bell(Socket& s);

/// A thread is about to sleep on a socket, and on its bell.
///
///   BellSleep bell(s, …)
///   want_data(bool(bell)), or want_room()
///   poll({socket, watch()})
///   rung()?
class BellSleep {
 public:
  BellSleep() = default;
  /// Nothing if not `wanted`, or if there is no bell, or another thread sleeps so.
  BellSleep(Socket& s, bool wanted);
  ~BellSleep();
  BellSleep(const BellSleep&) = delete;
  BellSleep& operator=(const BellSleep&) = delete;
  explicit operator bool() const { return s_ != nullptr; }
  /// What to poll besides the socket; its number, 0 or 1.
  nfds_t watch(pollfd* at) const;
  /// Whether the bell was rung, by `at` as the kernel has answered it. Takes the edge.
  bool rung(const pollfd* at) const;

 private:
  Socket* s_ = nullptr;
};

}  // namespace clan::preload

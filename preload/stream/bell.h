// Bells: how a thread that sleeps on a socket which has moved is woken without TCP (state/bell.h).
// What has no bell, as another process that has found the pipe by itself, is woken by a doorbell,
// which all that sleep on the socket see; so is whatever watches the socket past this library.
#pragma once

#include <poll.h>

#include "clan/pipe.h"
#include "os/signals.h"
#include "state/socket.h"

namespace clan::preload {

/// Wakes the other end, as `done` of this socket's pipe wants it.
void ring(int fd, Socket& s, const Pipe::Done& done);

/// Rings the other end's bell. False: it has none that this process could ring.
bool ring_bell(Socket& s);

/// A thread is about to sleep until its socket has bytes or its bell is rung.
///
///   BellSleep bell(fd, s, …)
///   want_data(bool(bell)), or want_room()
///   sleep()
class BellSleep {
 public:
  BellSleep() = default;
  /// Nothing if not `wanted`, or if there is no bell, or another thread sleeps so.
  BellSleep(int fd, Socket& s, bool wanted);
  ~BellSleep();
  BellSleep(const BellSleep&) = delete;
  BellSleep& operator=(const BellSleep&) = delete;
  explicit operator bool() const { return s_ != nullptr; }

  /// Waits as poll() for POLLIN and POLLRDHUP of the socket. >0 with `revents` 0: it was rung. 0
  /// also where the process was stopped and goes on: epoll_wait() says EINTR then.
  int sleep(pollfd* socket, int timeout_ms, const SinceEntry& since) const;
  /// To be polled for POLLIN in place of the socket; and then, what that would have answered.
  int descriptor() const { return s_->bell_set.get(); }
  short answer() const;

 private:
  Socket* s_ = nullptr;
};

/// The program closes the last descriptor of the socket. A thread that sleeps there goes on.
void keep_open_for_sleeper(int fd, Socket& s);

}  // namespace clan::preload

// How an end enters a pipe, while one process alone has its socket. Later forks share the pipe.
#pragma once

#include <mutex>

#include "clan/face/reasons.h"
#include "kernel/sock_diag.h"
#include "os/signals.h"
#include "state/socket.h"

namespace clan::preload {

/// Makes the pipe of a socket, as its end 1. False: no memory; the connection stays on TCP.
bool create_pipe(int fd, Socket& s);

/// Lets both directions move to `s.pipe`. False: a call is under way in the kernel, or another
/// process has the socket; try later.
bool enter_pipe(int fd, Socket& s, const Route& route);

/// Keeps the connection on TCP for good, in all processes that have the open file, now or later.
/// False: it has moved already, and the caller may take it back.
bool keep_on_tcp(int fd, Socket& s, reasons::Why why);

/// Counts a call, and tells whether the other end, which has not attached to the pipe yet, will
/// never do so; calls cost less without a pipe.
bool has_waited_for_peer(Socket& s);

/// Tries to take the lock of the thread that decides where a socket goes; others do not wait.
class TryLockGuard {
 public:
  explicit TryLockGuard(Socket& s) : lock_(s.moving, std::try_to_lock) {}
  explicit operator bool() const { return lock_.owns_lock(); }

 private:
  DeferSignals undisturbed_;
  std::unique_lock<SpinLock> lock_;
};

}  // namespace clan::preload

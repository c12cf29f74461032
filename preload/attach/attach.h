// How an end enters a pipe: while one process alone has its socket. What is forked then shares the
// pipe.
#pragma once

#include <cstdint>
#include <cstring>

#include "clan/face/reasons.h"
#include "kernel/sock_diag.h"
#include "os/signals.h"
#include "state/socket.h"
#include "table/fd_table.h"

namespace clan::preload {

/// Makes the pipe of a socket, as its end 1. False: no memory, and it stays on TCP.
bool create_pipe(int fd, Socket& s);

/// From now on both directions may move to `s.pipe`. False: a call is under way in the kernel, or
/// another process has the socket; later.
bool enter_pipe(int fd, Socket& s, const Route& route);

/// The connection stays on TCP for good: no process that has the open file, now or later, moves it.
/// False: it has moved already, and has still to be taken back if it must not stay there.
bool keep_on_tcp(int fd, Socket& s, reasons::Why why);

/// Whether the other end of a socket, which has not attached to the pipe yet, will not attach any
/// more; calls cost less without a pipe. Counts the call.
bool has_waited_for_peer(Socket& s);

/// One thread at a time decides where a socket goes, and others do not wait.
class TryLockGuard {
 public:
  explicit TryLockGuard(Socket& s) : s_(s), mine_(s.moving.try_lock()) {}
  ~TryLockGuard() {
    if (mine_) s_.moving.unlock();
  }
  explicit operator bool() const { return mine_; }

 private:
  DeferSignals undisturbed_;
  Socket& s_;
  bool mine_;
};

}  // namespace clan::preload

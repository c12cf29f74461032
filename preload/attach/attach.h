// How an end enters a pipe: its own, or one that another process which shares the socket has moved
// it to.
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

/// From now on both directions may move to `s.pipe`. False: a call is under way in the kernel;
/// later.
bool enter_pipe(int fd, Socket& s, const Route& route);

/// Takes Socket::moving while the process does not fork: what changes then is counted.
void lock_between_forks(Socket& s);

/// The process got a descriptor of a connection that has moved into `pipe`, whose processes have
/// `slot`, and has been counted among its holders. `follows`: also among those that are to follow.
void join_pipe(int fd, Socket& s, OpenFileState& slot, Pipe pipe, const Route& route, bool follows);

/// Another process that shares the open file has moved it: follow.
void catch_up(int fd, Socket& s);

/// As acquire(), and follows.
inline SocketRef hold_current(int fd) {
  SocketRef s = acquire(fd);
  if (s && s->inherited.load(std::memory_order_relaxed)) catch_up(fd, *s);
  return s;
}

/// As catch_up() does it: the calling process finds the connection moved. Under Socket::moving.
void begin_sharing(int fd, Socket& s, bool counted, bool moves);

/// For a socket that other processes share: this process will not be able to follow it, or they
/// will not be able to follow this process. The socket moves only while one process has it. Follows
/// now if one of them has moved it.
void move_only_alone(int fd, Socket& s);

/// The connection stays on TCP for good: no process that shares the open file moves it any more.
/// False: it has moved already, and has still to be taken back if it must not stay there.
bool keep_on_tcp(int fd, Socket& s, reasons::Why why);

/// Counts the sockets that this process, or one it shares them with over fork, has moved after the
/// fork.
std::uint32_t moves_of_shared();

/// Sockets are being counted for a child: none moves meanwhile. Before the first, memory for
/// moves_of_shared().
void forbid_moves();
void allow_moves();

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

// Socket: what the library knows of a TCP socket of the application, whose descriptor stays the
// kernel's.
//
// A connection starts on TCP and may move into a Pipe while it lives (migrate/). Each direction
// moves by itself:
//
//   sender    asks the kernel how many bytes it has sent by TCP in all, publishes that number
//             (socket_face::kSwitchAt, then kSending) and sends the rest through the pipe
//   receiver  reads from TCP exactly up to that number, then from the pipe
//
// From then on TCP carries nothing. The threads that sleep for the pipe (recv, poll, epoll, of any
// process) are woken by the bell of their end (socket_migration.h).
//
// The end of a connection is the kernel's word: when the peer's process is gone or has closed, TCP
// says so. What then is left in the pipe is read first.
//
// One Socket serves all descriptors of this process that name the same open file (dup). Memory:
// Sockets come from a pool that is never returned, so a stale pointer finds a Socket, if not the
// one it looked for.
#pragma once

#include <atomic>

#include "clan/face/pipe.h"
#include "state/socket_demotion.h"
#include "state/socket_identity.h"
#include "state/socket_migration.h"
#include "state/socket_transfer.h"

namespace clan::preload {

struct Socket : Identity, Bells, Transfer, Migration, Demotion, Watch {
  Socket* next_free = nullptr;  ///< in the pool

  PipePage::Face& mine() const { return pipe.my_face(); }
  PipePage::Face& theirs() const { return pipe.peer_face(); }
  /// For good, and no set remembers it.
  bool stays_on_tcp() const {
    return state.load(std::memory_order_relaxed) == State::kKernel &&
           !in_sets.load(std::memory_order_relaxed);
  }
  bool shared() const {
    // PAIR preload.shared: sees the pipe
    return state.load(std::memory_order_acquire) == State::kShared;
  }
  /// For the next connection, when nobody has this one any more.
  void reset();
};

/// Adds up for tests what went by shared memory (os/test_settings.h). Both ends count what they
/// find that the other one has not counted: at close, exit and _exit. A process that is killed
/// counts nothing.
void count_for_test(Socket& s);

}  // namespace clan::preload

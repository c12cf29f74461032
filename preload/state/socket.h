// Socket: the library's state of a TCP socket of the application. The descriptor is the kernel's.
//
// A connection starts on TCP and may move into a Pipe (migrate/), each direction by itself:
//
//   sender    asks the kernel how many bytes it has sent by TCP in all, publishes that number
//             (socket_face::kSwitchAt, then kSending) and sends the rest through the pipe
//   receiver  reads from TCP exactly up to that number, then from the pipe
//
// From then on TCP carries nothing. The bell of an end wakes its sleepers (recv, poll, epoll) in
// all processes (socket_migration.h). The kernel reports when the peer has closed or died; what is
// left in the pipe is read first.
//
// One Socket serves all descriptors of this process for one open file (dup). Sockets come from a
// pool that is never unmapped, so a stale pointer finds a Socket, perhaps another one.
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
  /// Whether it stays on TCP for good and no set remembers it.
  bool stays_on_tcp() const {
    return state.load(std::memory_order_relaxed) == State::kKernel &&
           !in_sets.load(std::memory_order_relaxed);
  }
  bool shared() const {
    // PAIR preload.shared: sees the pipe
    return state.load(std::memory_order_acquire) == State::kShared;
  }
  /// Prepares it for the next connection. No thread may hold it.
  void reset();
};

/// Adds to the sums of the tests what went by shared memory (os/test_settings.h). Each end, at
/// close, exit and _exit, counts what the other has not. A killed process counts nothing.
void count_for_test(Socket& s);

}  // namespace clan::preload

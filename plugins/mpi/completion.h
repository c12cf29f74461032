// Waiting for one request of an RDMA queue. Nothing of Open MPI here.
#pragma once

#include <clan/rdma.h>

#include <cerrno>
#include <cstdint>

namespace clan::mpi {

/// Waits until the request with that cookie has completed; its status. A signal does not end the
/// wait, because the request goes on meanwhile and would write to memory that its caller has taken
/// back. Completions of other cookies are of requests whose caller has gone. Another error than the
/// request's own: the queue is of no use in this process (it was forked off), and carries nothing
/// out. Thread-safety: one thread at a time for each queue.
template <typename Queue>
Status wait_for(Queue& queue, std::uint64_t cookie) {
  for (;;) {
    RdmaCompletion completion;
    auto done = queue.wait({&completion, 1});
    if (!done && done.error().err == EINTR) continue;
    if (!done) return done.error();
    if (completion.cookie != cookie) continue;
    if (completion.status != 0) return Error{completion.status, "RDMA of a peer's memory"};
    return {};
  }
}

}  // namespace clan::mpi

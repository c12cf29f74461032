// The RDMA scheduler's queues, what passes between them, and what moves the bytes (RdmaMover).
#pragma once

#include <clan/rdma_request.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <vector>

#include "nic/link.h"
#include "nic/rdma_ring.h"

namespace clan::nic {

/// What the mover and the callback learn about a queue.
struct RdmaQueueRef {
  std::uint32_t id = 0;     // its number while it is attached
  void* context = nullptr;  // as given to attach()
};

/// One contiguous piece of a request. `local` is an address of the queue's application.
struct RdmaChunk {
  RdmaQueueRef queue;
  std::uint64_t token = 0;  // for complete_chunk, if the answer is kPending
  RdmaOp op = RdmaOp::kWrite;
  bool last = false;  // the request's last chunk
  std::uint32_t remote = 0;
  void* local = nullptr;
  std::uint64_t remote_offset = 0;
  std::uint64_t length = 0;
  std::uint64_t cookie = 0;
};

/// What moves the bytes.
class RdmaMover {
 public:
  virtual ~RdmaMover() = default;

  /// Checks a request before its first chunk: allowed, and no wrap-around. Returns 0 or an errno.
  virtual int check(const RdmaQueueRef& queue, const RdmaRequest& request) = 0;

  /// Moves one chunk; fails where rights were revoked since check(). kPending:
  /// complete_chunk(token) follows. kBusy: offered again after retry_deferred().
  virtual TransferResult move(const RdmaChunk& chunk) = 0;

  /// The queue goes while the chunk is pending: its memory may not be touched after this call, and
  /// complete_chunk for it is harmless.
  virtual void cancel(const RdmaQueueRef& queue, std::uint64_t token) = 0;
};

/// What a mover reported as an error is one, and a positive errno value.
inline int rdma_errno(int err) { return err > 0 ? err : EIO; }

struct RdmaSchedulerOptions {
  std::uint64_t chunk_bytes = 128 * 1024;
  /// For queues that have not been alone for kAloneBytes, so that small requests of others do not
  /// wait for a large chunk. 0: chunk_bytes.
  std::uint64_t shared_chunk_bytes = 0;
  std::uint64_t quantum_bytes = 128 * 1024;
  std::uint64_t group_quantum_bytes = 1024 * 1024;  // at most 64 quanta
  std::uint32_t max_queues = 256;                   // at most 65536
  std::uint32_t max_outstanding_chunks = 16;        // per queue, at most 256
  std::uint32_t max_inflight_requests = 64;         // per queue: accepted, not yet answered
  std::uint32_t starvation_turns = 16;
  /// A queue has new completions, or has been detached. Raise its event.
  std::function<void(const RdmaQueueRef&)> on_completion;
};

/// What came of a RdmaScheduler::run().
struct RdmaProgress {
  std::uint64_t bytes = 0;        // handed to the mover in this run
  std::uint32_t completions = 0;  // published in this run
  bool idle = false;              // no queue is active any more
  std::uint32_t deferred = 0;     // queues that wait for retry_deferred()
};

struct RdmaSchedulerCounters {
  std::uint64_t requests = 0;      // accepted from rings
  std::uint64_t completions = 0;   // published
  std::uint64_t bytes = 0;         // known to have arrived
  std::uint64_t chunks = 0;        // accepted by the mover
  std::uint64_t splits = 0;        // requests that took more than one chunk
  std::uint64_t deferrals = 0;     // chunks put off
  std::uint64_t bad_requests = 0;  // refused: malformed, or by check()
};

constexpr std::uint32_t kNoRdmaQueue = ~0u;

enum class RdmaQueueState : std::uint8_t { kIdle, kActive, kDeferred, kWaiting };

/// An accepted request, in a circular table per queue; the last one may be partly started.
struct RdmaInFlight {
  RdmaRequest request;
  std::uint64_t started = 0;  // bytes handed to the mover
  std::uint64_t moved = 0;    // bytes known to have arrived
  std::uint32_t outstanding = 0;
  int status = 0;
  bool checked = false;
  bool all_started = false;  // nothing more to hand to the mover
};

struct RdmaChunkSlot {
  std::uint64_t token = 0;  // 0: free
  std::uint64_t length = 0;
  std::uint32_t inflight = 0;  // index in the table
  std::uint32_t next_free = kNoRdmaQueue;
};

/// A queue that is served, in one of the states that rdma_scheduler.h describes.
struct RdmaQueueService {
  RdmaQueueService(RdmaRing& r, RdmaQueueRef self, const RdmaSchedulerOptions& options);

  /// The newest in-flight request.
  RdmaInFlight& current() { return inflight[(first + count - 1) % inflight.size()]; }
  const RdmaInFlight& current() const { return inflight[(first + count - 1) % inflight.size()]; }

  RdmaRing& ring;
  RdmaQueueRef ref;
  std::vector<RdmaInFlight> inflight;
  std::vector<RdmaChunkSlot> slots;
  std::uint32_t free_slot = 0;
  std::size_t first = 0;  // oldest in-flight request
  std::size_t count = 0;
  bool has_current = false;  // the newest in-flight request is not all started

  RdmaQueueState state = RdmaQueueState::kIdle;
  std::uint8_t level = 0;         // the list it is in, while active
  std::uint8_t wanted_level = 0;  // the priority of the current request's group
  bool turn_open = false;
  bool in_group = false;          // the current request has a neighbour in its group
  bool group_open = false;        // the newest accepted request had `more`
  bool holding = false;           // this turn has begun on the group, so it keeps the others out
  std::uint64_t group_bytes = 0;  // charged for the group in this turn
  std::int64_t deficit = 0;       // bytes this turn may still move; negative: overdrawn
  std::list<RdmaQueueService*>::iterator place;  // in its level's list, in deferred_ or in parked_
};

}  // namespace clan::nic

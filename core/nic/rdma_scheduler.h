// The driver's RDMA scheduler: shares a data mover between applications' request rings: which
// request runs next and how much of it. RdmaMover does the rest. No clock, threads or I/O.
//
//   rings ──take──> in-flight table ──chunks──> RdmaMover ──done/pending/deferred/error
//   (one per queue)  (one per queue)                │
//        ^                   └── retire in order <──┴── complete_chunk(token)
//        └──completion──────────────┘
//
// A queue is in one state:
//
//   idle      ring empty; the thread that posts calls activate()
//   active    in the round-robin list of its priority
//   deferred  its next chunk's page is not resident; waits for retry_deferred()
//   waiting   its window of outstanding chunks or its in-flight table is full; complete_chunk
//             wakes it
//
// Order of service
//  - Levels: the highest priority with an active queue is served. One passed over for
//    `starvation_turns` turns in a row gets a turn, so every level moves.
//  - Within a level: deficit round robin. A turn is worth `quantum_bytes`; overdrafts (at most a
//    chunk, or a group) are charged to the next turns, so shares are equal in bytes whatever the
//    requests' size. A request costs at least kMinCharge, as empty and refused ones are not free.
//  - Groups (RdmaRequest::more) overdraw their turn, up to `group_quantum_bytes`, rather than let
//    another queue of their level in; exceptions: rdma_request.h.
//  - Requests longer than `chunk_bytes` (beside other queues: `shared_chunk_bytes`) are split.
//    run() stops between chunks: a more urgent queue waits for one run() at most.
//
// Completions
//  - Each accepted request gets exactly one, in the order posted on its queue, when none of its
//    chunks is outstanding: the application may then reuse the memory.
//  - After a failed chunk the request's others are not started and its completion carries the first
//    error. Requests after it, of the same group too, run as usual.
//  - detach() answers everything accepted and everything still in the ring with ECANCELED.
//
// Every call, also of the mover and the completion callback, is made under the driver's lock; those
// must not call back in. A mover that finishes in another thread takes the lock and calls
// complete_chunk. attach() allocates, the data path does not.
#pragma once

#include <clan/rdma_request.h>
#include <clan/result.h>

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "nic/rdma_scheduler_queue.h"

namespace clan::nic {

class RdmaScheduler {
 public:
  using Options = RdmaSchedulerOptions;
  using Progress = RdmaProgress;
  using Counters = RdmaSchedulerCounters;

  static constexpr std::uint64_t kMinCharge = 64;
  static constexpr std::uint64_t kAloneBytes = 4u << 20;

  /// The mover must outlive the scheduler; detach queues with chunks outstanding before its end.
  RdmaScheduler(RdmaMover& mover, Options options);

  /// Serves `ring`, idle at first, under the number that it returns. ENOSPC: max_queues.
  Result<std::uint32_t> attach(RdmaRing& ring, void* context);

  /// Cancels outstanding chunks, answers everything posted, and leaves the ring.
  void detach(std::uint32_t id);

  /// The doorbell: something has been posted. Harmless at any other time.
  void activate(std::uint32_t id);

  /// Serves active queues until about `byte_budget` bytes (less than a chunk more) are charged.
  Progress run(std::uint64_t byte_budget);

  /// The pages that queues waited for may be resident now. Says how many waited.
  std::uint32_t retry_deferred();

  /// Ends a pending chunk: `status` 0 or an errno; 0 with too few `bytes` is EIO. False: none such.
  bool complete_chunk(std::uint64_t token, int status, std::uint64_t bytes);

  const Counters& counters() const { return counters_; }

 private:
  // A token: chunk sequence number, queue index, chunk slot. The first makes it unique.
  static constexpr unsigned kSequenceBits = 40;
  static constexpr unsigned kQueueBits = 16;
  static constexpr unsigned kSlotBits = 8;

  static constexpr std::uint32_t kNone = kNoRdmaQueue;
  using State = RdmaQueueState;
  using InFlight = RdmaInFlight;
  using Queue = RdmaQueueService;
  using List = std::list<Queue*>;

  int pick_level() const;
  bool open_turn(Queue& q);
  bool may_continue(const Queue& q) const;
  std::uint64_t chunk_limit() const;
  void serve_turn(Queue& q, std::uint64_t budget, Progress& progress);

  State fetch(Queue& q);
  void accept(Queue& q, const RdmaRequest& request);
  void make_runnable(Queue& q);

  State step(Queue& q, Progress& progress);
  bool check(Queue& q, InFlight& r);
  RdmaChunk next_chunk(Queue& q, const InFlight& r, std::uint32_t slot);
  void charge(Queue& q, std::uint64_t bytes);

  void end_current(Queue& q, int status);
  std::uint32_t retire(Queue& q);
  void release_slot(Queue& q, std::uint32_t slot);
  void notify(const Queue& q);

  void enqueue(Queue& q);
  void leave_list(Queue& q);
  void park(Queue& q, State state);

  RdmaMover& mover_;
  const Options options_;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::array<List, kRdmaPriorities> levels_;
  std::array<std::uint32_t, kRdmaPriorities> passed_over_{};
  List deferred_;
  List parked_;  // idle or waiting. Moving from one list to another allocates nothing
  std::uint64_t chunk_sequence_ = 0;
  std::uint64_t charged_ = 0;  // in this run
  std::uint32_t last_served_ = kNone;
  std::uint64_t alone_bytes_ = 0;  // charged to last_served_ since another queue had its turn
  Counters counters_;
};

}  // namespace clan::nic

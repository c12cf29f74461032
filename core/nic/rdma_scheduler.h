// The driver's RDMA scheduler: shares one data mover between the request rings of any number of
// applications. It decides which request runs next and how much of it; moving bytes, translating
// addresses and judging capabilities are the RdmaMover's work. No clock, no threads, no I/O.
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
//  - Levels: the highest priority with an active queue is served. A level that has been passed over
//    for `starvation_turns` turns in a row gets one turn, so every level moves.
//  - Within a level: deficit round robin. A turn is worth `quantum_bytes`; what a queue overdraws
//    (at most a chunk, or a group) is charged to its next turns, so shares are equal in bytes
//    however large the requests are. A request costs at least kMinCharge, so that empty and refused
//    ones are not free.
//  - Groups (RdmaRequest::more) overdraw their turn rather than let another queue of their level
//    in, up to `group_quantum_bytes` in one turn; see rdma_request.h for the exceptions.
//  - Requests longer than `chunk_bytes` (beside other queues: `shared_chunk_bytes`) are split.
//    run() stops between chunks: a queue that has become more urgent waits for one run(), no
//    longer.
//
// Completions
//  - Each accepted request gets exactly one, in the order of posting on its queue, when none of its
//    chunks is outstanding any more: the application may then reuse the memory.
//  - When a chunk fails, the request's remaining chunks are not started and its completion carries
//    the first error. Requests after it, members of the same group included, run as usual.
//  - detach() answers everything accepted and everything still in the ring with ECANCELED.
//
// Locking: none. Every call is made under the driver's lock. The mover and the completion callback
// are called under it too and must not call back in; a mover that finishes from another thread
// takes the lock and calls complete_chunk. attach() allocates, the data path does not.
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

  /// The mover must outlive the scheduler, and queues with chunks outstanding be detached before
  /// its end.
  RdmaScheduler(RdmaMover& mover, Options options);

  /// Serves `ring` from now on, under the number that it returns; starts idle. ENOSPC: max_queues
  /// are attached.
  Result<std::uint32_t> attach(RdmaRing& ring, void* context);

  /// Ends service: cancels outstanding chunks and answers everything posted. The ring is not
  /// touched after it returns.
  void detach(std::uint32_t id);

  /// The doorbell: something has been posted. Harmless at any other time.
  void activate(std::uint32_t id);

  /// Serves active queues until about `byte_budget` bytes (more by less than a chunk) have been
  /// charged or none is active.
  Progress run(std::uint64_t byte_budget);

  /// The pages that queues waited for may be resident now. Says how many waited.
  std::uint32_t retry_deferred();

  /// A pending chunk is over: `status` 0 or an errno value, `bytes` of it arrived (status 0 with
  /// too few bytes is EIO). False: no such chunk is outstanding.
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

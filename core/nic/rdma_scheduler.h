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
//   idle      ring empty; the application rings (activate) when it posts again
//   active    in the round-robin list of its priority
//   deferred  its next chunk's page is not resident; waits for resume()
//   waiting   its window of outstanding chunks or its in-flight table is full; complete_chunk
//             wakes it
//   broken    the application wrote an impossible index; nothing more is taken from it
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
// are called under it too and must not call back in (they get EDEADLK); a mover that finishes from
// another thread takes the lock and calls complete_chunk. create() and attach() allocate, the data
// path does not.
#pragma once

#include <clan/rdma_request.h>
#include <clan/result.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "nic/rdma_ring.h"

namespace clan::nic {

/// Names an attached queue. Never reused: a queue attached later has another generation.
struct RdmaQueueId {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;  // 0 is no queue
  friend bool operator==(const RdmaQueueId&, const RdmaQueueId&) = default;
};

/// What the mover and the callback are told about a queue.
struct RdmaQueueRef {
  RdmaQueueId id;
  void* context = nullptr;  // as given to attach()
};

/// One contiguous piece of a request. `local` is an address of the queue's application.
struct RdmaChunk {
  RdmaQueueRef queue;
  std::uint64_t token = 0;  // for complete_chunk, if the answer is kPending
  RdmaOp op = RdmaOp::kWrite;
  std::uint8_t priority = 0;
  bool last = false;  // the request's last chunk
  bool more = false;  // the request's `more`
  std::uint32_t remote = 0;
  void* local = nullptr;
  std::uint64_t remote_offset = 0;
  std::uint64_t length = 0;
  std::uint64_t cookie = 0;
};

struct RdmaMoveResult {
  enum class Kind : std::uint8_t {
    kDone,      // every byte has arrived
    kPending,   // under way; complete_chunk(token) will tell
    kDeferred,  // nothing moved: a page is not resident. Offered again after resume()
    kError,     // `err`; `bytes` of the chunk may have arrived
  };
  Kind kind = Kind::kDone;
  int err = 0;
  std::uint64_t bytes = 0;

  static RdmaMoveResult done() { return {Kind::kDone, 0, 0}; }
  static RdmaMoveResult pending() { return {Kind::kPending, 0, 0}; }
  static RdmaMoveResult deferred() { return {Kind::kDeferred, 0, 0}; }
  static RdmaMoveResult error(int err, std::uint64_t bytes = 0) {
    return {Kind::kError, err, bytes};
  }
};

/// What moves the bytes.
class RdmaMover {
 public:
  virtual ~RdmaMover() = default;

  /// Is this request allowed? 0 or an errno value. Called once per request, before its first chunk.
  virtual int check(const RdmaQueueRef& queue, const RdmaRequest& request) = 0;

  /// Moves one chunk. Rights may have been revoked since check(): that is an error here.
  virtual RdmaMoveResult move(const RdmaChunk& chunk) = 0;

  /// The queue goes away while the chunk with this token is pending. After the call neither its
  /// local nor its remote memory may be touched for it. complete_chunk for it is harmless.
  virtual void cancel(const RdmaQueueRef& queue, std::uint64_t token) = 0;
};

/// What a mover reported as an error is one, and a positive errno value.
inline int rdma_errno(int err) { return err > 0 ? err : EIO; }

class RdmaScheduler {
 public:
  struct Options {
    std::uint64_t chunk_bytes = 128 * 1024;
    /// Chunks of a queue that has not been alone for kAloneBytes: a small request of another queue
    /// must not wait for a large chunk. 0: chunk_bytes.
    std::uint64_t shared_chunk_bytes = 0;
    std::uint64_t quantum_bytes = 128 * 1024;
    std::uint64_t group_quantum_bytes = 1024 * 1024;  // at most 64 quanta
    std::uint32_t max_queues = 256;                   // at most 65536
    std::uint32_t max_outstanding_chunks = 16;        // per queue, at most 256
    std::uint32_t max_inflight_requests = 64;         // per queue: accepted, not yet answered
    std::uint32_t starvation_turns = 16;
    /// A queue has new completions, or has been broken or detached. Raise its event.
    std::function<void(const RdmaQueueRef&)> on_completion;
  };

  struct Progress {
    std::uint64_t bytes = 0;        // handed to the mover in this run
    std::uint32_t completions = 0;  // published in this run
    bool idle = false;              // no queue is active any more
    std::uint32_t deferred = 0;     // queues that wait for resume()
  };

  struct Counters {
    std::uint64_t requests = 0;      // accepted from rings
    std::uint64_t completions = 0;   // published
    std::uint64_t bytes = 0;         // known to have arrived
    std::uint64_t chunks = 0;        // accepted by the mover
    std::uint64_t splits = 0;        // requests that took more than one chunk
    std::uint64_t deferrals = 0;     // chunks put off
    std::uint64_t bad_requests = 0;  // refused: malformed, or by check()
    std::uint64_t cancelled = 0;     // requests ended by detach()
    std::uint64_t stale_tokens = 0;  // complete_chunk for a chunk that is not outstanding
    std::uint64_t broken_queues = 0;
    std::uint64_t rounds = 0;       // turns given
    std::uint64_t guard_turns = 0;  // of these, turns the starvation guard gave
  };

  static constexpr std::uint64_t kMinCharge = 64;
  static constexpr std::uint64_t kAloneBytes = 4u << 20;

  /// EINVAL if an option is out of range. The mover must outlive the scheduler.
  static Result<RdmaScheduler> create(RdmaMover& mover, Options options);

  RdmaScheduler(RdmaScheduler&&) = default;
  RdmaScheduler& operator=(RdmaScheduler&&) = default;
  RdmaScheduler(const RdmaScheduler&) = delete;
  RdmaScheduler& operator=(const RdmaScheduler&) = delete;
  /// Detach queues with chunks outstanding first: the destructor tells the mover nothing.
  ~RdmaScheduler() = default;

  /// Serves `ring` from now on; starts idle. ENOSPC: max_queues are attached.
  Result<RdmaQueueId> attach(RdmaRingDriver ring, void* context);

  /// Ends service: cancels outstanding chunks, answers everything posted, marks the ring closed.
  /// The ring's memory is not touched after it returns.
  Status detach(RdmaQueueId id);

  /// The doorbell: post() returned true. Harmless at any other time. EPROTO: the queue is broken.
  Status activate(RdmaQueueId id);

  /// Serves active queues until about `byte_budget` bytes (more by less than a chunk) have been
  /// charged or none is active.
  Progress run(std::uint64_t byte_budget);

  /// The page this queue waited for may be resident now.
  Status resume(RdmaQueueId id);
  /// The same for all of them; says how many.
  std::uint32_t retry_deferred();

  /// A pending chunk is over: `status` 0 or an errno value, `bytes` of it arrived (status 0 with
  /// too few bytes is EIO). ESTALE, and counted: no such chunk is outstanding.
  Status complete_chunk(std::uint64_t token, int status, std::uint64_t bytes);

  const Counters& counters() const { return counters_; }
  std::uint32_t outstanding_chunks() const { return outstanding_; }
  std::uint32_t deferred_queues() const { return deferred_.size; }

 private:
  static constexpr std::uint32_t kNone = ~0u;
  // A token: chunk sequence number, queue index, chunk slot. The first makes it unique.
  static constexpr unsigned kSequenceBits = 40;
  static constexpr unsigned kQueueBits = 16;
  static constexpr unsigned kSlotBits = 8;

  enum class State : std::uint8_t { kIdle, kActive, kDeferred, kWaiting, kBroken };

  /// An accepted request, in a circular table per queue; the last one may be partly started.
  struct InFlight {
    RdmaRequest request;
    std::uint64_t started = 0;  // bytes handed to the mover
    std::uint64_t moved = 0;    // bytes known to have arrived
    std::uint32_t outstanding = 0;
    int status = 0;
    bool malformed = false;
    bool checked = false;
    bool all_started = false;  // nothing more to hand to the mover
  };

  struct ChunkSlot {
    std::uint64_t token = 0;  // 0: free
    std::uint64_t length = 0;
    std::uint32_t inflight = 0;  // index in the table
    std::uint32_t next_free = kNone;
  };

  struct Queue {
    Queue(RdmaRingDriver r, RdmaQueueRef self, const Options& options);

    /// The newest in-flight request.
    InFlight& current() { return inflight[(first + count - 1) % inflight.size()]; }
    const InFlight& current() const { return inflight[(first + count - 1) % inflight.size()]; }

    RdmaRingDriver ring;
    RdmaQueueRef ref;
    std::vector<InFlight> inflight;
    std::vector<ChunkSlot> slots;
    std::uint32_t free_slot = 0;
    std::size_t first = 0;  // oldest in-flight request
    std::size_t count = 0;
    bool has_current = false;  // the newest in-flight request is not all started

    State state = State::kIdle;
    std::uint8_t level = 0;         // the list it is in, while active
    std::uint8_t wanted_level = 0;  // the priority of the current request's group
    bool turn_open = false;
    bool in_group = false;          // the current request has a neighbour in its group
    bool group_open = false;        // the newest accepted request had `more`
    bool holding = false;           // this turn has begun on the group, so it keeps the others out
    std::uint64_t group_bytes = 0;  // charged for the group in this turn
    std::int64_t deficit = 0;       // bytes this turn may still move; negative: overdrawn
    std::uint32_t prev = kNone;     // in its level's list, or in deferred_
    std::uint32_t next = kNone;
  };

  struct List {
    std::uint32_t front = kNone;
    std::uint32_t back = kNone;
    std::uint32_t size = 0;
  };

  RdmaScheduler(RdmaMover& mover, Options options);

  int pick_level(bool* guard) const;
  bool open_turn(Queue& q, bool guard);
  bool may_continue(const Queue& q) const;
  std::uint64_t chunk_limit() const;
  void serve_turn(Queue& q, std::uint64_t budget, Progress& progress);

  State fetch(Queue& q);
  void accept(Queue& q, const RdmaTaken& taken);
  bool make_runnable(Queue& q);

  State step(Queue& q, Progress& progress);
  bool check(Queue& q, InFlight& r);
  RdmaChunk next_chunk(Queue& q, const InFlight& r, std::uint32_t slot);
  void charge(Queue& q, std::uint64_t bytes);

  void end_current(Queue& q, int status);
  std::uint32_t retire(Queue& q);
  void release_slot(Queue& q, std::uint32_t slot);
  void notify(const Queue& q);

  Queue* find(RdmaQueueId id);
  void push_back(List& list, Queue& q);
  void unlink(List& list, Queue& q);
  void enqueue(Queue& q);
  void leave_list(Queue& q);
  void park(Queue& q, State state);

  RdmaMover* mover_;
  Options options_;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::vector<std::uint32_t> generations_;
  std::array<List, kRdmaPriorities> levels_;
  std::array<std::uint32_t, kRdmaPriorities> passed_over_{};
  List deferred_;
  std::uint32_t outstanding_ = 0;
  std::uint64_t chunk_sequence_ = 0;
  std::uint64_t charged_ = 0;  // in this run
  std::uint32_t last_served_ = kNone;
  std::uint64_t alone_bytes_ = 0;  // charged to last_served_ since another queue had its turn
  Counters counters_;
  bool busy_ = false;  // inside a call: the mover or the callback must not call back
};

}  // namespace clan::nic

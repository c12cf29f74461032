#include "nic/rdma_scheduler.h"

#include <algorithm>
#include <utility>

namespace clan::nic {
// ---- set-up ----

RdmaQueueService::RdmaQueueService(RdmaRing& r, RdmaQueueRef self,
                                   const RdmaSchedulerOptions& options)
    : ring(r),
      ref(self),
      inflight(options.max_inflight_requests),
      slots(options.max_outstanding_chunks) {
  for (std::uint32_t i = 0; i + 1 < slots.size(); ++i) slots[i].next_free = i + 1;
}

RdmaScheduler::RdmaScheduler(RdmaMover& mover, Options options)
    : mover_(mover), options_(std::move(options)), queues_(options_.max_queues) {}

Result<std::uint32_t> RdmaScheduler::attach(RdmaRing& ring, void* context) {
  const auto free = std::find(queues_.begin(), queues_.end(), nullptr);
  if (free == queues_.end()) return Error{ENOSPC, "attach an RDMA queue"};
  const auto id = static_cast<std::uint32_t>(free - queues_.begin());
  *free = std::make_unique<Queue>(ring, RdmaQueueRef{id, context}, options_);
  (*free)->place = parked_.insert(parked_.end(), free->get());
  return id;
}

void RdmaScheduler::detach(std::uint32_t id) {
  Queue* q = queues_[id].get();
  leave_list(*q);
  for (std::uint32_t i = 0; i < q->slots.size(); ++i) {
    if (q->slots[i].token == 0) continue;
    mover_.cancel(q->ref, q->slots[i].token);
    InFlight& r = q->inflight[q->slots[i].inflight];
    r.outstanding--;
    if (r.status == 0) r.status = ECANCELED;
    release_slot(*q, i);
  }
  if (q->has_current) end_current(*q, ECANCELED);
  retire(*q);

  RdmaRequest request;  // what is still in the ring
  while (q->ring.take(&request)) {
    q->ring.complete({request.cookie, ECANCELED, 0});
    counters_.requests++;
    counters_.completions++;
  }
  notify(*q);
  parked_.erase(q->place);
  queues_[id].reset();
}

// ---- calls that wake a queue ----

void RdmaScheduler::activate(std::uint32_t id) {
  Queue* q = queues_[id].get();
  if (q != nullptr && q->state == State::kIdle) make_runnable(*q);
}

std::uint32_t RdmaScheduler::retry_deferred() {
  std::uint32_t n = 0;
  for (; !deferred_.empty(); ++n) {
    Queue& q = *deferred_.front();
    leave_list(q);
    make_runnable(q);
  }
  return n;
}

bool RdmaScheduler::complete_chunk(std::uint64_t token, int status, std::uint64_t bytes) {
  const std::uint64_t slot_index = token & ((1u << kSlotBits) - 1);
  const std::uint64_t queue_index = (token >> kSlotBits) & ((1u << kQueueBits) - 1);
  Queue* q = queue_index < queues_.size() ? queues_[queue_index].get() : nullptr;
  if (token == 0 || q == nullptr || slot_index >= q->slots.size() ||
      q->slots[slot_index].token != token) {
    return false;
  }
  const RdmaChunkSlot slot = q->slots[slot_index];
  InFlight& r = q->inflight[slot.inflight];
  const std::uint64_t arrived = std::min(bytes, slot.length);
  if (status != 0 || arrived < slot.length) status = rdma_errno(status);
  r.outstanding--;
  r.moved += arrived;
  counters_.bytes += arrived;
  release_slot(*q, static_cast<std::uint32_t>(slot_index));
  if (r.status == 0) r.status = status;
  if (status != 0 && q->has_current && &r == &q->current()) end_current(*q, status);
  const bool news = retire(*q) != 0;
  if (q->state == State::kWaiting || (q->state == State::kDeferred && !q->has_current)) {
    leave_list(*q);
    make_runnable(*q);
  }
  if (news) notify(*q);
  return true;
}

// ---- choosing ----

RdmaScheduler::Progress RdmaScheduler::run(std::uint64_t byte_budget) {
  Progress progress;
  charged_ = 0;
  int level = 0;
  while ((level = pick_level()) >= 0 && charged_ < byte_budget) {
    Queue& q = *levels_[static_cast<unsigned>(level)].front();
    if (q.turn_open || open_turn(q)) serve_turn(q, byte_budget, progress);
  }
  progress.idle = level < 0;
  progress.deferred = static_cast<std::uint32_t>(deferred_.size());
  return progress;
}

/// The level to serve, or -1: the highest, or one that has been passed over for too long.
int RdmaScheduler::pick_level() const {
  int highest = -1;
  for (unsigned l = kRdmaPriorities; l-- > 0;) {
    if (levels_[l].empty()) continue;
    if (highest < 0) highest = static_cast<int>(l);
    if (passed_over_[l] >= options_.starvation_turns) return static_cast<int>(l);
  }
  return highest;
}

/// Gives the queue its quantum. False: it still owes for an earlier turn; the next one's turn.
bool RdmaScheduler::open_turn(Queue& q) {
  q.deficit =
      std::min<std::int64_t>(q.deficit, 0) + static_cast<std::int64_t>(options_.quantum_bytes);
  if (q.deficit <= 0) {
    List& list = levels_[q.level];
    list.splice(list.end(), list, q.place);
    return false;
  }
  if (last_served_ != q.ref.id) {
    last_served_ = q.ref.id;
    alone_bytes_ = 0;
  }
  q.turn_open = true;
  q.holding = false;
  q.group_bytes = 0;
  return true;
}

std::uint64_t RdmaScheduler::chunk_limit() const {
  const bool alone = alone_bytes_ >= kAloneBytes || options_.shared_chunk_bytes == 0;
  return alone ? options_.chunk_bytes : options_.shared_chunk_bytes;
}

/// May the queue start another chunk in this turn?
bool RdmaScheduler::may_continue(const Queue& q) const {
  if (q.deficit > 0) return true;
  if (!q.in_group || !q.holding) return false;
  const InFlight& r = q.current();
  const std::uint64_t next = std::min(chunk_limit(), r.request.length - r.started);
  return q.group_bytes + next <= options_.group_quantum_bytes;
}

/// Serves `q` until its turn ends, or the budget does: then its turn stays open for the next run.
void RdmaScheduler::serve_turn(Queue& q, std::uint64_t budget, Progress& progress) {
  std::uint32_t completions = 0;
  State state = State::kActive;
  for (;;) {
    if (!q.has_current) state = fetch(q);
    if (state != State::kActive) {
      park(q, state);
      break;
    }
    if (q.wanted_level != q.level || !may_continue(q)) {
      leave_list(q);
      enqueue(q);
      break;
    }
    if (charged_ >= budget) break;
    state = step(q, progress);
    completions += retire(q);
  }
  progress.completions += completions;
  if (completions != 0) notify(q);
}

// ---- lists ----

/// To the end of the level its current request wants.
void RdmaScheduler::enqueue(Queue& q) {
  q.level = q.wanted_level;
  q.state = State::kActive;
  levels_[q.level].splice(levels_[q.level].end(), parked_, q.place);
}

/// Out of the round, or of the deferred list; its turn, if it had one, is over.
void RdmaScheduler::leave_list(Queue& q) {
  if (q.state == State::kDeferred) parked_.splice(parked_.end(), deferred_, q.place);
  if (q.state == State::kActive) {
    List& list = levels_[q.level];
    parked_.splice(parked_.end(), list, q.place);
    if (q.turn_open || list.empty()) passed_over_[q.level] = 0;
    if (q.turn_open)
      for (unsigned l = 0; l < q.level; ++l)
        if (!levels_[l].empty()) passed_over_[l]++;
    q.turn_open = false;
  }
  q.state = State::kIdle;
}

void RdmaScheduler::park(Queue& q, State state) {
  leave_list(q);
  q.state = state;
  if (state == State::kDeferred) deferred_.splice(deferred_.end(), parked_, q.place);
}

// ---- taking requests ----

/// Makes the oldest request in the ring the current one. kActive if there is one.
RdmaScheduler::State RdmaScheduler::fetch(Queue& q) {
  if (q.count == q.inflight.size()) return State::kWaiting;
  RdmaRequest request;
  if (!q.ring.take(&request)) return State::kIdle;
  accept(q, request);
  return State::kActive;
}

void RdmaScheduler::accept(Queue& q, const RdmaRequest& request) {
  q.count++;
  InFlight& r = q.current();
  r = InFlight{};
  r.request = request;
  q.has_current = true;
  if (!q.group_open) {                                    // the first of a group, or alone
    q.wanted_level = request.priority % kRdmaPriorities;  // check() refuses others
    q.holding = false;
    q.group_bytes = 0;
  }
  q.in_group = q.group_open || request.more;
  q.group_open = request.more;
  counters_.requests++;
}

/// Puts a queue that is in no list where it belongs.
void RdmaScheduler::make_runnable(Queue& q) {
  const State state = q.has_current ? State::kActive : fetch(q);
  if (state == State::kActive)
    enqueue(q);
  else
    park(q, state);
}

// ---- moving ----

/// Starts the next chunk of the current request, or ends the request. What the queue is after it.
RdmaScheduler::State RdmaScheduler::step(Queue& q, Progress& progress) {
  InFlight& r = q.current();
  q.holding = q.in_group;
  if (!r.checked && !check(q, r)) return State::kActive;
  if (q.free_slot == kNone) return State::kWaiting;

  const std::uint32_t slot = q.free_slot;
  const RdmaChunk chunk = next_chunk(q, r, slot);
  const TransferResult result = mover_.move(chunk);
  if (result.kind == TransferResult::Kind::kBusy) {
    counters_.deferrals++;
    return State::kDeferred;
  }
  counters_.chunks++;
  if (r.started == 0 && !chunk.last) counters_.splits++;
  r.started += chunk.length;
  charge(q, chunk.length);
  progress.bytes += chunk.length;
  switch (result.kind) {
    case TransferResult::Kind::kPending:
      q.free_slot = q.slots[slot].next_free;
      q.slots[slot] = {chunk.token, chunk.length,
                       static_cast<std::uint32_t>(&r - q.inflight.data()), kNone};
      r.outstanding++;
      break;
    case TransferResult::Kind::kDone:
      r.moved += chunk.length;
      counters_.bytes += chunk.length;
      break;
    default: end_current(q, rdma_errno(result.err)); return State::kActive;
  }
  if (chunk.last) end_current(q, 0);
  return State::kActive;
}

/// Checks a request and charges for that. False: it is over (refused, or empty).
bool RdmaScheduler::check(Queue& q, InFlight& r) {
  r.checked = true;
  const int err = mover_.check(q.ref, r.request);
  if (err != 0) {
    charge(q, kMinCharge);
    counters_.bad_requests++;
    end_current(q, rdma_errno(err));
    return false;
  }
  charge(q, kMinCharge - std::min(kMinCharge, r.request.length));
  if (r.request.length == 0) end_current(q, 0);
  return r.request.length != 0;
}

RdmaChunk RdmaScheduler::next_chunk(Queue& q, const InFlight& r, std::uint32_t slot) {
  chunk_sequence_ = (chunk_sequence_ + 1) & ((std::uint64_t{1} << kSequenceBits) - 1);
  if (chunk_sequence_ == 0) chunk_sequence_ = 1;  // token 0 is no chunk
  const std::uint64_t left = r.request.length - r.started;
  RdmaChunk c;
  c.queue = q.ref;
  c.token =
      chunk_sequence_ << (kQueueBits + kSlotBits) | std::uint64_t{q.ref.id} << kSlotBits | slot;
  c.op = r.request.op;
  c.length = std::min(chunk_limit(), left);
  c.last = c.length == left;
  c.remote = r.request.remote;
  // Integer arithmetic: check() has seen that it does not wrap.
  c.local = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(r.request.local) +
                                    static_cast<std::uintptr_t>(r.started));
  c.remote_offset = r.request.remote_offset + r.started;
  c.cookie = r.request.cookie;
  return c;
}

void RdmaScheduler::charge(Queue& q, std::uint64_t bytes) {
  charged_ += bytes;
  alone_bytes_ += bytes;
  q.deficit -= static_cast<std::int64_t>(bytes);
  if (q.in_group) q.group_bytes += bytes;
}

// ---- finishing ----

/// Nothing more of the current request will be started.
void RdmaScheduler::end_current(Queue& q, int status) {
  InFlight& r = q.current();
  r.all_started = true;
  if (r.status == 0) r.status = status;
  q.has_current = false;
}

/// Answers the requests that are over, oldest first. Says how many.
std::uint32_t RdmaScheduler::retire(Queue& q) {
  std::uint32_t n = 0;
  while (q.count != 0) {
    const InFlight& r = q.inflight[q.first];
    if (!r.all_started || r.outstanding != 0) break;
    q.ring.complete({r.request.cookie, r.status, r.moved});
    q.first = (q.first + 1) % q.inflight.size();
    q.count--;
    n++;
  }
  counters_.completions += n;
  return n;
}

void RdmaScheduler::release_slot(Queue& q, std::uint32_t slot) {
  q.slots[slot] = {0, 0, 0, q.free_slot};
  q.free_slot = slot;
}

void RdmaScheduler::notify(const Queue& q) {
  if (options_.on_completion) options_.on_completion(q.ref);
}

}  // namespace clan::nic

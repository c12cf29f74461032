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
  for (std::size_t i = 0; i < q->count; ++i)
    if (q->inflight[(q->first + i) % q->inflight.size()].status == ECANCELED) counters_.cancelled++;
  retire(*q);

  RdmaRequest request;  // what is still in the ring
  while (q->ring.take(&request)) {
    q->ring.complete({request.cookie, ECANCELED, 0});
    counters_.requests++;
    counters_.completions++;
    counters_.cancelled++;
  }
  notify(*q);
  queues_[id].reset();
}

// ---- calls that wake a queue ----

void RdmaScheduler::activate(std::uint32_t id) {
  Queue* q = queues_[id].get();
  if (q != nullptr && q->state == State::kIdle) make_runnable(*q);
}

std::uint32_t RdmaScheduler::retry_deferred() {
  std::uint32_t n = 0;
  for (; deferred_.size != 0; ++n) {
    Queue& q = *queues_[deferred_.front];
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
    counters_.stale_tokens++;
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
  bool guard = false;
  while ((level = pick_level(&guard)) >= 0 && charged_ < byte_budget) {
    Queue& q = *queues_[levels_[static_cast<unsigned>(level)].front];
    if (q.turn_open || open_turn(q, guard)) serve_turn(q, byte_budget, progress);
  }
  progress.idle = level < 0;
  progress.deferred = deferred_.size;
  return progress;
}

/// The level to serve, or -1. `guard`: it got in by having been passed over.
int RdmaScheduler::pick_level(bool* guard) const {
  int highest = -1;
  for (unsigned l = kRdmaPriorities; l-- > 0;) {
    if (levels_[l].size == 0) continue;
    if (highest < 0) highest = static_cast<int>(l);
    if (passed_over_[l] >= options_.starvation_turns) {
      *guard = static_cast<int>(l) != highest;
      return static_cast<int>(l);
    }
  }
  *guard = false;
  return highest;
}

/// Gives the queue its quantum. False: it still owes for an earlier turn; the next one's turn.
bool RdmaScheduler::open_turn(Queue& q, bool guard) {
  q.deficit =
      std::min<std::int64_t>(q.deficit, 0) + static_cast<std::int64_t>(options_.quantum_bytes);
  if (q.deficit <= 0) {
    List& list = levels_[q.level];
    unlink(list, q);
    push_back(list, q);
    return false;
  }
  if (last_served_ != q.ref.id) {
    last_served_ = q.ref.id;
    alone_bytes_ = 0;
  }
  q.turn_open = true;
  q.holding = false;
  q.group_bytes = 0;
  counters_.rounds++;
  counters_.guard_turns += guard ? 1 : 0;
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

void RdmaScheduler::push_back(List& list, Queue& q) {
  q.prev = list.back;
  q.next = kNone;
  (list.back == kNone ? list.front : queues_[list.back]->next) = q.ref.id;
  list.back = q.ref.id;
  list.size++;
}

void RdmaScheduler::unlink(List& list, Queue& q) {
  (q.prev == kNone ? list.front : queues_[q.prev]->next) = q.next;
  (q.next == kNone ? list.back : queues_[q.next]->prev) = q.prev;
  q.prev = q.next = kNone;
  list.size--;
}

/// To the end of the level its current request wants.
void RdmaScheduler::enqueue(Queue& q) {
  q.level = q.wanted_level;
  q.state = State::kActive;
  push_back(levels_[q.level], q);
}

/// Out of the round, or of the deferred list; its turn, if it had one, is over.
void RdmaScheduler::leave_list(Queue& q) {
  if (q.state == State::kDeferred) unlink(deferred_, q);
  if (q.state == State::kActive) {
    List& list = levels_[q.level];
    unlink(list, q);
    if (q.turn_open || list.size == 0) passed_over_[q.level] = 0;
    if (q.turn_open)
      for (unsigned l = 0; l < q.level; ++l)
        if (levels_[l].size != 0) passed_over_[l]++;
    q.turn_open = false;
  }
  q.state = State::kIdle;
}

void RdmaScheduler::park(Queue& q, State state) {
  leave_list(q);
  q.state = state;
  if (state == State::kDeferred) push_back(deferred_, q);
}

}  // namespace clan::nic

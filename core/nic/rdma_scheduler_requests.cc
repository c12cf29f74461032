// RdmaScheduler: a queue's requests, from its ring to their completions.
#include <algorithm>
#include <utility>

#include "nic/rdma_scheduler.h"

namespace clan::nic {

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
  const RdmaMoveResult result = mover_.move(chunk);
  if (result.kind == RdmaMoveResult::Kind::kDeferred) {
    counters_.deferrals++;
    return State::kDeferred;
  }
  counters_.chunks++;
  if (r.started == 0 && !chunk.last) counters_.splits++;
  r.started += chunk.length;
  charge(q, chunk.length);
  progress.bytes += chunk.length;
  switch (result.kind) {
    case RdmaMoveResult::Kind::kPending:
      q.free_slot = q.slots[slot].next_free;
      q.slots[slot] = {chunk.token, chunk.length,
                       static_cast<std::uint32_t>(&r - q.inflight.data()), kNone};
      r.outstanding++;
      outstanding_++;
      break;
    case RdmaMoveResult::Kind::kDone:
      r.moved += chunk.length;
      counters_.bytes += chunk.length;
      break;
    default: {
      const std::uint64_t arrived = std::min(result.bytes, chunk.length);
      r.moved += arrived;
      counters_.bytes += arrived;
      end_current(q, rdma_errno(result.err));
      return State::kActive;
    }
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
  outstanding_--;
}

void RdmaScheduler::notify(const Queue& q) {
  if (options_.on_completion) options_.on_completion(q.ref);
}

}  // namespace clan::nic

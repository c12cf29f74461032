// Pipe: the side that sends, of an end that several processes share.
//
// A process may be stopped (SIGSTOP, a debugger) at any instruction and go on at any time after, or
// be killed; the others take the lock from it then (Pipe::TakeableLock) and go on. What one that
// was stopped is still going to write must hurt nobody. A call, for each record:
//
//   1. takes the lock of the side, and a claim (engine/pipe_claims.h), which the lock then names
//   2. plans: the record goes behind the tail, past the lines of all claims at that tail; never to
//      lines that a claim of an earlier tail has. The plan stands in its claim
//   3. looks whether the lock is still its own. If not it goes back to 1; it has written nothing.
//      Otherwise whoever takes the lock from now on sees the claim
//   4. copies the bytes, and writes what lies behind them: to lines of its claim alone
//   5. publishes: one compare-and-swap of the line at the tail, from 0 to the head of the record,
//   or
//      to a hop to it. It fails if another one has published there: then back to 1
//   6. raises the cursors to what its claim says: never lowers one
//   7. gives up the plan and the claim, and lets the lock go
//
//      tail: | 0 | claim of a thread that is stopped (5 to come) | record | 0 |
//              `------------------- jump, at 5 of another one ---^
//
// Of all that plan for the same tail one comes first at 5, whoever has the lock by then, and its
// record is sent. The line at the tail is never 0 again as long as there is a claim of that tail:
// it belongs to these lines, which nobody uses (2), and no memory is released meanwhile. So the
// swap of one that comes late fails.
//
// Stopped or killed at
//   1, 3     others take the lock
//   2        likewise; a plan that is made later is noticed at 3, before anything is written
//   4        likewise, and send past its lines, which stay out of use until it goes on, or has died
//   5        is one instruction
//   6        who takes the lock sees that the line at the tail is not 0, and does 6 from the claim.
//   A
//            late 6 changes nothing
//   7        whoever comes next sees a thread that has died, or a claim without a plan
// The owner says with the claim in which pid namespace it counts: only there it can be said that it
// has died.
//
// Lines of a claim of an earlier tail lie, for the planner, in what the reader has not read: the
// credit counts up to that tail only. So as long as a thread is stopped at 4 to 6 the others send
// as much as the ring has room for, and then are held up (EBUSY). Also: all claims are taken.
//
// Calls of a process that is alone with the end know little of this: they send here while there are
// planned claims (claims_in_force()), which they look for when `bound` does not let them go on; it
// is 0 from 1 on. What is no send (end_sending(), leave(), release()) says EBUSY, or does nothing.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "clan/clock.h"
#include "clan/cpu.h"
#include "engine/application_buffers.h"
#include "engine/pipe_claims.h"
#include "engine/pipe_shared.h"

namespace clan {

using namespace pipes;

namespace {

void raise_touched(PipePage::Sender& s, std::uint64_t to) {
  // relaxed: a number by itself
  std::uint64_t now = s.touched.load(std::memory_order_relaxed);
  while (now < to && !s.touched.compare_exchange_weak(now, to, std::memory_order_relaxed)) {
  }
}

}  // namespace

/// What one call, and one turn of it, goes by.
struct Pipe::Shared::Send {
  Claiming& claim;
  const TakeableLock& lock;
  PipeRoom room;
  PipeRing ring;
  Planned planned{};
  PipeSlot slot{};
  bool clamped = false;  ///< claims of earlier tails took room
};

namespace {

// What `claim` leaves of the ring to one that plans at `tail`: it goes on behind it, or the reader
// counts as not having passed `floor`.
void leave_out(const PipePage::Claim& claim, std::uint64_t tail, std::uint64_t lines,
               PipeProducer& p, std::uint64_t& floor) {
  Planned theirs;
  if (!read_claim(claim, &theirs)) return;
  if (theirs.from == tail) {
    if (theirs.after.tail - tail >= lines || theirs.after.tail < p.tail)
      return;                        // a lie; before us
    p.tail = theirs.after.tail + 1;  // behind its terminator
    p.skip_at = theirs.after.skip_at;
    p.jump_at = theirs.after.jump_at;
    p.jump_gap = theirs.after.jump_gap;
  } else if (tail - theirs.from <= tail - p.consumed) {
    // Of one whose tail we have seen consumed the plan was made too late: it writes nothing.
    floor = std::min(floor, theirs.from);
  }
}

}  // namespace

// 2 and 3, for `n` bytes or fewer.
Pipe::Shared::Plan Pipe::Shared::plan(Pipe& pipe, Send& call, std::uint64_t* n) {
  auto& end = pipe.page_->ends[pipe.end_];
  auto relaxed = std::memory_order_relaxed;  // under the lock, or looked at again
  PipeProducer p = load(end.sender);
  const std::uint64_t tail = p.tail, bytes = end.sender.bytes.load(relaxed);
  // One that has lost the lock may still publish, and then raises the cursors, the tail at last.
  // They belong together if it has not. PAIR pipe.lock: sees the tail as the others; PAIR
  // pipe.claim: Dekker, behind taking the lock
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // PAIR ring.head: who has published may have raised cursors
  if (shm::head_at(pipe.out_, call.ring.index(tail)).load(std::memory_order_acquire) != 0 ||
      end.sender.tail.load(relaxed) != tail)
    return call.lock.is_ours() ? Plan::kAgain : Plan::kTaken;
  p.calm = pipe.is_calm();
  std::uint64_t floor = tail;
  for (const auto& other : end.claims) {
    if (!call.claim.is(other)) leave_out(other, tail, pipe.lines_, p, floor);
  }
  auto seen = [&] {
    // PAIR pipe.credit: the reader has finished with the lines before it
    return pipe.page_->ends[1 - pipe.end_].receiver.credit.load(std::memory_order_acquire);
  };
  auto credit = [&] {
    const std::uint64_t now = seen();
    return floor != tail && now - p.consumed > floor - p.consumed &&
                   now - p.consumed <= p.tail - p.consumed
               ? floor
               : now;
  };
  // Lines stay for the terminator, for put_last() and for one that has to send past this claim.
  constexpr std::uint64_t kSpareLines = 2;
  std::uint64_t most = pipe.most_lines(pipe.end_, call.room) + kSpareLines;
  if (floor != tail) {  // what the reader has read behind it takes none of what may be sent
    PipeProducer without = p, with = p;
    without.consumed = seen();
    with.consumed = credit();
    const std::uint64_t used = call.ring.used(with), really = call.ring.used(without);
    most += used > really ? std::min(used - really, pipe.lines_) : 0;
    call.clamped = true;
  }
  int rc;
  while ((rc = call.ring.reserve(p, kStampBytes + *n + kSpareLines * kCacheLine, most, credit,
                                 &call.slot)) == 0 &&
         *n > kLeastPiece) {
    *n /= 2;
  }
  if (rc < 0) {
    if (call.lock.is_ours()) pipe.broke("impossible credit");
    return Plan::kTaken;
  }
  call.slot.lines = shm::lines_for(kStampBytes + *n);
  // One hop leads there from the tail.
  if (rc == 0 || call.slot.position + call.slot.lines + 1 - tail >= pipe.lines_)
    return Plan::kNoRoom;
  call.planned = {tail, call.slot.position, p, bytes + *n};
  call.ring.advance(call.planned.after, call.slot);
  end.sender.look_at.store(call.planned.after.look_at, relaxed);  // a hint
  call.claim.plan(call.planned);
  return call.lock.is_ours() ? Plan::kMade : Plan::kTaken;
}

// 4 to 6. False: another one has published at the tail, or `err`: EFAULT.
bool Pipe::Shared::publish(Pipe& pipe, Send& call, Cursor& cursor, std::uint64_t n, int* err) {
  auto& sender = pipe.page_->ends[pipe.end_].sender;
  const PipeRing ring = call.ring;
  const std::uint64_t tail = call.planned.from, position = call.slot.position,
                      at = ring.index(position), lines = call.slot.lines;
  raise_touched(sender, at + lines + 1);
  if (at + lines > kSmallLines) pipe.note_large();
  const PipeStamp stamp = PipeStamp::make(order_stamp(), t_thread.past_pipes);
  const std::uint16_t cpu = current_cpu_tag();
  std::byte* payload = ring.payload_at(pipe.out_, call.slot);
  std::memcpy(payload, &stamp, kStampBytes);
  auto copy = [&] { cursor.gather(payload + kStampBytes, n); };
  if (!guarded(copy)) {
    *err = EFAULT;
    return false;
  }
  // PAIR ring.head: as PipeRing::publish()
  shm::head_at(pipe.out_, at + lines).store(0, std::memory_order_release);
  auto head = shm::RingHead::make(static_cast<std::uint32_t>(kStampBytes + n), kBytesRecord, cpu);
  if (position != tail) {
    shm::head_at(pipe.out_, at)
        .store(head.word, std::memory_order_release);  // PAIR ring.head: likewise
    head = shm::RingHead::make(static_cast<std::uint32_t>(at), at == 0 ? shm::kRingSkip : kRingJump,
                               cpu);
  }
  std::uint64_t none = 0;
  // PAIR ring.head: publishes the payload, the terminator and the record behind a hop to peek()
  if (!shm::head_at(pipe.out_, ring.index(tail))
           .compare_exchange_strong(none, head.word, std::memory_order_release,
                                    std::memory_order_relaxed))
    return false;
  raise_cursors(sender, call.planned);
  return true;
}

bool Pipe::Shared::try_send(Pipe& pipe, const iovec* buffers, int count, PipeRoom room,
                            Done* done) {
  auto& end = pipe.page_->ends[pipe.end_];
  const std::size_t wanted = total(buffers, count);
  TakeableLock lock(pipe, pipe.sending_, end.sender.lock);
  if ((done->err = lock.err()) != 0) return true;
  end.sender.bound.store(0, std::memory_order_relaxed);  // relaxed: under the lock, harmless late
  (void)claims_in_force(pipe);
  if (pipe.broken()) return *done = {0, false, EPROTO}, true;
  if (end.sender.ended.load(std::memory_order_relaxed) != 0) return *done = {0, false, EPIPE}, true;
  Claiming claim(end);
  if (claim && !lock.names(claim.number())) return false;
  Send call{claim, lock, room, PipeRing{pipe.lines_}};
  const std::uint64_t piece =
      std::min<std::uint64_t>(shm::kRingPiece, call.ring.max_payload()) - kStampBytes;
  Cursor cursor(buffers, count);
  while (claim && done->bytes < wanted && done->err == 0) {
    std::uint64_t n = std::min<std::uint64_t>(wanted - done->bytes, piece);
    const Plan plan = Shared::plan(pipe, call, &n);
    if (plan == Plan::kNoRoom) break;
    if (plan == Plan::kMade) {
      const Cursor before = cursor;
      if (publish(pipe, call, cursor, n, &done->err)) {
        done->bytes += n;
      } else {
        cursor = before;
      }
    }
    claim.unplan();
    if (plan == Plan::kTaken) return pipe.broken() ? (done->err = EPROTO, true) : done->bytes > 0;
    if (plan == Plan::kAgain && !finish_published(pipe)) return done->err = EPROTO, true;
  }
  if (done->bytes == 0 && done->err == 0 &&
      (!claim || (call.clamped && pipe.has_room(pipe.end_, room)))) {
    pipe.sending_.give_up();
    done->err = EBUSY;
  }
  return true;
}

Pipe::Done Pipe::send_shared(const iovec* buffers, int count, PipeRoom room) {
  Done done;
  if (total(buffers, count) == 0) return done;
  for (int turns = 0; !Shared::try_send(*this, buffers, count, room, &done); ++turns) {
    if (turns == Shared::kMostTurns) return {0, false, EBUSY};
  }
  if (done.bytes == 0) return done;
  auto& sender = page_->ends[end_].sender;
  sender.messages.fetch_add(1, std::memory_order_relaxed);  // relaxed: a count
  done.must_ring = take_waiting<shm::AsymmetricFence>(page_->ends[1 - end_].receiver.waiting);
  if (done.must_ring) sender.rang.store(1, std::memory_order_relaxed);  // relaxed: a hint
  return done;
}

}  // namespace clan

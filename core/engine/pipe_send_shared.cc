// Pipe: the side that sends, of an end that several processes share.
//
// A process may be stopped (SIGSTOP, a debugger) at any instruction and go on at any time after, or
// be killed; the others take the lock from it then (Pipe::TakeableLock) and go on. What one that
// was stopped is still going to write must hurt nobody. A call, for each record:
//
//   1. takes the lock of the side, and a claim (engine/pipe_claims.h), which the lock then names
//   2. plans: the record goes behind the tail, past the lines of all claims at that tail, and past
//      those that a claim of an earlier tail has, where it comes to them again. The plan stands in
//      its claim
//   3. looks whether the lock is still its own. If not it goes back to 1; it has written nothing.
//      Otherwise a thread that takes the lock from now on sees the claim
//   4. copies the bytes, and writes what lies behind them: to lines of its claim alone
//   5. publishes: one compare-and-swap of the line at the tail, from 0 to the head of the record,
//      or to a hop to it. It fails if another one has published there: then back to 1
//   6. raises the cursors to what its claim says, never lowers one; before the tail `ended`, if
//      that was the last record
//   7. gives up the plan and the claim, and lets the lock go
//
//      tail: | 0 | claim of a thread that is stopped (5 to come) | record | 0 |
//              `------------------- jump, at 5 of another one ---^
//
// Of all that plan for the same tail one comes first at 5, whichever has the lock by then, and its
// record is sent. The line at the tail is never 0 again as long as there is a claim of that tail:
// it belongs to these lines, which nobody uses (2), and no memory is released meanwhile. So the
// swap of one that comes late fails. So does that of one that was stopped before the last record:
// it begins again, and finds that the end has been closed.
//
// Stopped or killed at
//   1, 3     others take the lock
//   2        likewise; a plan that is made later is noticed at 3, before anything is written
//   4        likewise, and send past its lines, which stay out of use until it goes on, or has died
//   5        is one instruction
//   6        the next owner sees that the line at the tail is not 0, and does 6 from the claim.
//            A late 6 changes nothing
//   7        the next owner sees a thread that has died, or a claim without a plan
// The owner says with the claim in which pid namespace it counts: only there it can be said that it
// has died.
//
// Each turn of the ring the others pass the lines of one that is stopped at 4 to 6 as if a record
// lay there that the reader hops over. They are held up (EBUSY) when all claims are taken, one of
// which is for last records, or when so many lines are that little of a small ring is left.
//
// Calls of a process that is alone with the end know little of this: they send here while there are
// planned claims (claims_in_force()), which they look for when `bound` does not let them go on; it
// is 0 from 1 on. end_sending() and leave() say EBUSY then, and release() does nothing.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "clan/clock.h"
#include "clan/cpu.h"
#include "clan/words.h"
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
  std::uint32_t ends = 0;  ///< the record is the last: as PipePage::Sender::ended
  Planned planned{};
  PipeSlot slot{};
  bool passes_claims = false;  ///< of earlier tails
};

namespace {

/// Lines that claims of earlier tails have: nobody else writes there.
class ClaimedLines {
 public:
  void add(std::uint64_t first, std::uint64_t n) {
    if (n != 0 && count_ < kMost) ranges_[count_++] = {first, first + n};
  }
  bool any() const { return count_ != 0; }
  /// 0: none of those from `first` to before `end` is among them; else where one may go on.
  std::uint64_t behind(std::uint64_t first, std::uint64_t end) const {
    std::uint64_t to = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      if (ranges_[i].first < end && first < ranges_[i].end) to = std::max(to, ranges_[i].end);
    }
    return to;
  }

 private:
  static constexpr std::size_t kMost = 2 * PipePage::kClaims;
  struct Range {
    std::uint64_t first, end;
  };
  Range ranges_[kMost] = {};
  std::size_t count_ = 0;
};

// What `claim` leaves of the ring to one that plans at `tail`: it goes on behind it, or round it.
void leave_out(const PipePage::Claim& claim, std::uint64_t tail, const PipeRing& ring,
               PipeProducer& p, ClaimedLines& others) {
  Planned theirs;
  if (!read_claim(claim, &theirs)) return;
  const std::uint64_t end = theirs.after.tail, lines = ring.lines;  // its terminator
  if (theirs.from == tail) {
    if (end - tail >= lines || end < p.tail) return;       // a lie; before us
    p.tail = end + (ring.index(end) + 1 < lines ? 1 : 0);  // from the last line one only skips
    p.skip_at = theirs.after.skip_at;
    p.jump_at = theirs.after.jump_at;
    p.jump_gap = theirs.after.jump_gap;
  } else {
    // Its swap must fail, so the line that it expects to be 0 stays what it is.
    others.add(ring.index(theirs.from), 1);
    const std::uint64_t at = ring.index(theirs.position), n = end + 1 - theirs.position;
    if (n <= lines - at) others.add(at, n);
  }
}

// As PipeRing::reserve(), of `payload` bytes and `spare` lines, past what others have claimed.
int reserve_past(const PipeRing& ring, const ClaimedLines& others, PipeProducer& p,
                 std::uint64_t payload, std::uint64_t spare, std::uint64_t most,
                 const std::atomic<std::uint64_t>& credit, PipeSlot* slot) {
  // PAIR pipe.credit: the reader has finished with the lines before it
  auto seen = [&] { return words::look(credit); };
  constexpr int kMostPassed = 4 * PipePage::kClaims;  // each once before the ring's end, and behind
  for (int passed = 0; passed <= kMostPassed; ++passed) {
    const int rc = ring.reserve(p, payload + spare * kCacheLine, most, seen, slot);
    if (rc != 1) return rc;
    slot->lines = shm::lines_for(payload);
    const std::uint64_t at = ring.index(slot->position);
    const std::uint64_t to =
        others.behind(at, at + slot->lines + std::max<std::uint64_t>(spare, 1));
    if (to == 0) return 1;
    slot->lines = std::min(to, ring.lines - 1) - at;  // as if a record lay there
    ring.advance(p, *slot);
  }
  return 0;
}

}  // namespace

// 2 and 3, for `n` bytes or fewer.
Pipe::Shared::Plan Pipe::Shared::plan(Pipe& pipe, Send& call, std::uint64_t* n) {
  auto& end = pipe.page_->ends[pipe.end_];
  auto relaxed = std::memory_order_relaxed;  // under the lock, or looked at again
  PipeProducer p = load(end.sender);
  const std::uint64_t tail = p.tail, bytes = end.sender.bytes.load(relaxed);
  // PAIR pipe.lock: sees the tail as the others; PAIR pipe.claim: Dekker, behind taking the lock
  std::atomic_thread_fence(std::memory_order_seq_cst);
  ClaimedLines others;
  for (const auto& other : end.claims) {
    if (!call.claim.is(other)) leave_out(other, tail, call.ring, p, others);
  }
  // One that has lost the lock may still publish, and then raises the cursors, the tail at last,
  // and gives up its claim. If it has not by now, they belong together, and its claim has been
  // seen. PAIR ring.head: the publisher may have raised cursors
  if (shm::head_at(pipe.out_, call.ring.index(tail)).load(std::memory_order_acquire) != 0 ||
      end.sender.tail.load(relaxed) != tail)
    return call.lock.is_ours() ? Plan::kAgain : Plan::kTaken;
  if (end.sender.ended.load(relaxed) != 0)  // which comes before the tail behind it
    return call.lock.is_ours() ? Plan::kEnded : Plan::kTaken;
  p.calm = pipe.is_calm();
  call.passes_claims = others.any();
  // Lines stay for the terminator, for the last record and for one that has to send past this
  // claim.
  constexpr std::uint64_t kSpareLines = 2;
  const std::uint64_t spare = call.ends != 0 ? 0 : kSpareLines;
  const std::uint64_t most =
      call.ends != 0 ? pipe.lines_ : pipe.most_lines(pipe.end_, call.room) + spare;
  const PipeProducer before = p;
  auto reserve = [&](std::uint64_t look_at) {
    p = before;
    p.look_at = look_at;
    const int rc = reserve_past(call.ring, others, p, kStampBytes + *n, spare, most,
                                pipe.page_->ends[1 - pipe.end_].receiver.credit, &call.slot);
    // One hop leads there from the tail.
    const bool near = call.slot.position + call.slot.lines + 1 - tail < pipe.lines_;
    return rc == 1 && !near ? 0 : rc;
  };
  int rc = reserve(before.look_at);
  // Fewer bytes may fit in between what is to be passed, or before it.
  for (; rc == 0 && *n > kLeastPiece; rc = reserve(others.any() ? pipe.lines_ : before.look_at))
    *n /= 2;
  if (rc < 0) {
    if (call.lock.is_ours()) pipe.broke("impossible credit");
    return Plan::kTaken;
  }
  if (rc == 0) return Plan::kNoRoom;
  call.planned = {tail, call.slot.position, p, bytes + *n, call.ends};
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
  constexpr std::uint8_t kTypes[] = {kBytesRecord, kEndRecord, kLeaveRecord};
  const std::uint8_t type = kTypes[call.ends];
  auto head = shm::RingHead::make(static_cast<std::uint32_t>(kStampBytes + n), type, cpu);
  if (position != tail) {
    shm::head_at(pipe.out_, at)
        .store(head.word, std::memory_order_release);  // PAIR ring.head: likewise
    head = shm::RingHead::make(static_cast<std::uint32_t>(at), at == 0 ? shm::kRingSkip : kRingJump,
                               cpu);
  }
  if (!publish_first(shm::head_at(pipe.out_, ring.index(tail)), head.word)) return false;
  raise_cursors(sender, call.planned);
  return true;
}

// 1, and what comes before 2. False: the call is over, with `done`, or begins again.
bool Pipe::Shared::may_send(Pipe& pipe, const TakeableLock& lock, Done* done) {
  auto& sender = pipe.page_->ends[pipe.end_].sender;
  if ((done->err = lock.err()) != 0) return false;
  sender.bound.store(0, std::memory_order_relaxed);  // relaxed: under the lock, harmless late
  (void)claims_in_force(pipe, &lock);
  const bool ended = sender.ended.load(std::memory_order_relaxed) != 0;
  done->err = pipe.broken() ? EPROTO : ended ? EPIPE : 0;
  return done->err == 0;
}

// One record. `*n` bytes of it have been sent, if that is the answer; or why not.
Pipe::Shared::Plan Pipe::Shared::send_record(Pipe& pipe, Send& call, Cursor& cursor,
                                             std::uint64_t* n, int* err) {
  Plan plan = Shared::plan(pipe, call, n);
  if (plan == Plan::kMade) {
    const Cursor before = cursor;
    if (!publish(pipe, call, cursor, *n, err)) {
      cursor = before;
      plan = Plan::kAgain;
    }
    call.claim.unplan();
    return plan;
  }
  call.claim.unplan();
  if (plan == Plan::kTaken && pipe.broken()) *err = EPROTO;
  if (plan == Plan::kAgain && !finish_published(pipe, &call.lock)) *err = EPROTO;
  return plan;
}

bool Pipe::Shared::try_send(Pipe& pipe, const iovec* buffers, int count, PipeRoom room,
                            Done* done) {
  auto& end = pipe.page_->ends[pipe.end_];
  const std::size_t wanted = total(buffers, count);
  TakeableLock lock(pipe, pipe.sending_, end.sender.lock);
  if (!may_send(pipe, lock, done)) return true;
  Claiming claim(end);
  if (claim && !lock.names(claim.number())) return false;
  Send call{claim, lock, room, PipeRing{pipe.lines_}};
  const std::uint64_t piece =
      std::min<std::uint64_t>(shm::kRingPiece, call.ring.max_payload()) - kStampBytes;
  Cursor cursor(buffers, count);
  Plan plan = Plan::kAgain;
  while (claim && done->bytes < wanted && done->err == 0) {
    std::uint64_t n = std::min<std::uint64_t>(wanted - done->bytes, piece);
    plan = send_record(pipe, call, cursor, &n, &done->err);
    if (plan == Plan::kMade) done->bytes += n;
    if (plan == Plan::kTaken) return done->err != 0 || done->bytes > 0;
    if (plan == Plan::kNoRoom || plan == Plan::kEnded) break;
  }
  if (done->bytes != 0 || done->err != 0) return true;
  if (plan == Plan::kEnded) {
    done->err = EPIPE;
  } else if (!claim || (call.passes_claims && pipe.has_room(pipe.end_, room))) {
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
  done.ring_for(take_waiting<shm::AsymmetricFence>(page_->ends[1 - end_].receiver.waiting));
  if (done.must_ring) sender.rang.store(1, std::memory_order_relaxed);  // relaxed: a hint
  return done;
}

bool Pipe::Shared::try_end(Pipe& pipe, std::uint8_t type, Done* done) {
  auto& end = pipe.page_->ends[pipe.end_];
  TakeableLock lock(pipe, pipe.sending_, end.sender.lock);
  if (!may_send(pipe, lock, done)) return true;
  Claiming claim(end, Claiming::For::kLast);
  if (claim && !lock.names(claim.number())) return false;
  const std::uint32_t ends = type == kEndRecord ? 1 : 2;
  Send call{claim, lock, PipeRoom::kWhole, PipeRing{pipe.lines_}, ends};
  Cursor none(nullptr, 0);
  Plan plan = claim ? Plan::kAgain : Plan::kNoRoom;
  while (plan == Plan::kAgain && done->err == 0) {
    std::uint64_t n = 0;
    plan = send_record(pipe, call, none, &n, &done->err);
  }
  if (plan == Plan::kTaken) return done->err != 0;
  if (plan == Plan::kMade) done->bytes = 1;
  if (plan == Plan::kEnded) done->err = EPIPE;
  if (plan == Plan::kNoRoom) done->err = EBUSY;
  return true;
}

Pipe::Done Pipe::Shared::put_last(Pipe& pipe, std::uint8_t type) {
  Done done;
  for (int turns = 0; !try_end(pipe, type, &done); ++turns) {
    if (turns == kMostTurns) return {0, false, EBUSY};
  }
  if (done.bytes != 0) {
    auto& reader = pipe.page_->ends[1 - pipe.end_].receiver;
    done.ring_for(take_waiting<shm::AsymmetricFence>(reader.waiting));
  }
  return done;
}

Pipe::Done Pipe::end_sending_shared() { return Shared::put_last(*this, kEndRecord); }
Pipe::Done Pipe::leave_shared() { return Shared::put_last(*this, kLeaveRecord); }

}  // namespace clan

// Pipe: the side that receives, of an end that several processes share.
//
// A process may be stopped (SIGSTOP, a debugger) at any instruction, and go on at any time after,
// or be killed. The kernel's socket is not held up by that, and neither are the others here: they
// take the lock from it (Pipe::TakeableLock). A call, in this order:
//
//   1. takes the lock of the side
//   2. looks at {head, offset}, and copies bytes out of the ring into its own memory
//   3. moves {head, offset} on and lets the lock go, both by one compare-and-swap of 16 bytes from
//      {head, lock, offset} as they were at 2. It fails if somebody has taken the lock since
//   4. tells the sender of the lines that are free again: the credit is raised, never lowered
//   5. counts the bytes
//
// Stopped or killed at
//   1, 2  another one takes the lock and reads the same bytes. When this one goes on, its 3 fails:
//         what it has copied, which may be bytes that were written since, is dropped, and it begins
//         again. It has written to memory of its own alone
//   3     is one instruction
//   4, 5  without the lock: the others go on. The credit is raised by the next one that gets so
//   far.
//         Of one that was killed before 5 the count lacks its bytes
// A call that has read a lot does 3 and 4 in between, without letting go; what it has by then it
// keeps if the next 3 fails, and answers with that.
//
// The lock may have been taken by a call that knows nothing of this (an end that is not shared any
// more): it stores its cursors under a word of its own, so 3 fails as well.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "clan/words.h"
#include "engine/application_buffers.h"
#include "engine/pipe_copy_out.h"
#include "engine/pipe_lock.h"
#include "engine/pipe_parts.h"
#include "engine/pipe_shared.h"

namespace clan {

#if defined(__x86_64__)

namespace pipes {

/// The 16 bytes that change together.
struct alignas(16) ReadState {
  std::uint64_t head;
  std::uint32_t lock, offset;
};
static_assert(offsetof(PipePage::Receiver, head) == offsetof(ReadState, head) &&
              offsetof(PipePage::Receiver, lock) == offsetof(ReadState, lock) &&
              offsetof(PipePage::Receiver, offset) == offsetof(ReadState, offset) &&
              alignof(PipePage::Receiver) % sizeof(ReadState) == 0);

}  // namespace pipes

#endif

using namespace pipes;

#if defined(__x86_64__)

namespace {

__extension__ using Word128 = unsigned __int128;

__attribute__((target("cx16"), noinline)) bool swap(PipePage::Receiver& receiver, ReadState from,
                                                    ReadState to) {
  Word128 before, after;
  std::memcpy(&before, &from, sizeof before);
  std::memcpy(&after, &to, sizeof after);
  // PAIR pipe.front: the head, before its lines are written over
  // PAIR pipe.lock: publishes the cursors; a full fence on the one machine that has it
  return __sync_bool_compare_and_swap(reinterpret_cast<Word128*>(&receiver), before, after);
}

// A thread that comes late with less leaves what there is.
void raise_credit(std::atomic<std::uint64_t>& credit, std::uint64_t to) {
  std::uint64_t now = credit.load(std::memory_order_relaxed);
  // PAIR pipe.credit: we have finished with them. As positions, which may be lies of the other end
  while (static_cast<std::int64_t>(to - now) > 0 && !words::replace(credit, now, to)) {
  }
}

}  // namespace

/// One turn of a call: what it has found and copied, and what of that is its own for good.
struct Pipe::Shared::Receive {
  const Pipe& pipe;
  PipePage::Receiver& receiver;
  Done* done;
  ReadState state;
  shm::RingConsumer c;
  std::uint64_t offset;
  std::size_t copied = 0;
  bool published = false;

  // 3 and 5. False: the lock has been taken, and what has been copied is no good.
  bool keep(std::uint32_t lock) {
    const ReadState next{c.head, lock, static_cast<std::uint32_t>(offset)};
    if (!swap(receiver, state, next)) return false;
    state = next;
    receiver.bytes.fetch_add(copied - done->bytes, std::memory_order_relaxed);  // a count
    done->bytes = copied;
    return true;
  }
  void tell() {  // 4
    raise_credit(receiver.credit, c.head);
    c.published = c.head;
    published = true;
  }
  // All that has been read was there. `lock` is.
  bool is_ours(const TakeableLock& lock) const {
    return lock.is_ours() && receiver.head.load(std::memory_order_relaxed) == state.head &&
           receiver.offset.load(std::memory_order_relaxed) == state.offset;
  }
  // What it has kept stays.
  bool is_taken() const {
    done->err = 0;
    if (published) done->ring_for(pipe.sleeps_for_room(false));
    return done->bytes > 0;
  }
};

bool Pipe::Shared::try_receive(Pipe& pipe, const iovec* buffers, int count, bool peek, Done* done) {
  auto& receiver = pipe.page_->ends[pipe.end_].receiver;
  const std::size_t wanted = total(buffers, count);
  auto relaxed = std::memory_order_relaxed;  // under the lock, or a bound
  TakeableLock lock(pipe, pipe.receiving_, receiver.lock);
  if ((done->err = lock.err()) != 0) return true;
  if (pipe.broken()) return done->err = EPROTO, true;
  if (is_aside(receiver)) return true;
  const PipeRing ring{pipe.lines_};
  const ReadState state{receiver.head.load(relaxed), lock.word(), receiver.offset.load(relaxed)};
  Receive call{pipe,        receiver, done, state, {state.head, receiver.credit.load(relaxed)},
               state.offset};
  const std::uint64_t last_line = pipe.last_line_.load(relaxed);
  Cursor cursor(buffers, count);
  shm::RingRecord record;
  bool faults = false;
  int rc = last_line != 0 && call.c.head >= last_line ? -1 : 0;
  while (rc >= 0 && call.copied < wanted && (rc = ring.peek(call.c, pipe.in_, &record)) > 0) {
    std::uint64_t n = 0;
    const Copied what = copy_out(record, call.offset, wanted - call.copied, cursor, &n);
    faults = what == Copied::kFault;
    if (what == Copied::kBroken) rc = -1;
    if (what != Copied::kBytes) break;
    pipe.peer_cpu_.store(record.head.cpu(), relaxed);  // a hint
    call.copied += n;
    call.offset += n;
    if (ring.index(call.c.head) + record.lines > kSmallLines) pipe.note_large();
    if (call.offset < record.head.length() - kStampBytes) continue;
    call.offset = 0;
    call.c.head += record.lines;
    if (peek || !pipe.worth_telling(call.c.head - call.c.published)) continue;
    if (!call.keep(lock.word())) return call.is_taken();
    call.tell();
  }
  if (rc < 0) {
    if (!call.is_ours(lock)) return call.is_taken();  // what was read need be no record
    pipe.broke("impossible record");
    return *done = {0, false, EPROTO}, true;
  }
  done->err = faults ? EFAULT : 0;
  if (peek) return done->bytes = call.copied, call.is_ours(lock);
  const bool ahead = call.c.head - call.c.published >= ring.keep_up();
  // A caller that asks for as many bytes as there are does not see that these were all.
  const bool drained =
      rc == 0 || (ahead && call.offset == 0 && ring.peek(call.c, pipe.in_, &record) == 0);
  if (!call.keep(0)) return call.is_taken();
  if (drained && ahead) call.tell();
  if (call.published) done->ring_for(pipe.sleeps_for_room(drained));
  return true;
}

Pipe::Done Pipe::receive_shared(const iovec* buffers, int count, bool peek) {
  for (int turns = 0; turns < Shared::kMostTurns; ++turns) {
    Done done;
    if (Shared::try_receive(*this, buffers, count, peek, &done)) return done;
  }
  return {0, false, EBUSY};
}

int Pipe::set_aside() {
  auto& receiver = page_->ends[end_].receiver;
  const TakeableLock lock(*this, receiving_, receiver.lock);
  if (lock.err() != 0) return lock.err();
  if (broken()) return EPROTO;
  if (is_aside(receiver)) return EALREADY;
  // relaxed: under the lock
  const ReadState state{receiver.head.load(std::memory_order_relaxed), lock.word(),
                        receiver.offset.load(std::memory_order_relaxed)};
  return swap(receiver, state, {state.head, 0, state.offset | kAside}) ? 0 : EBUSY;
}

#else

int Pipe::set_aside() {
  auto& receiver = page_->ends[end_].receiver;
  const Locked lock(*this, receiving_, receiver.lock);
  if (lock.err() != 0) return lock.err();
  if (broken()) return EPROTO;
  if (is_aside(receiver)) return EALREADY;
  receiver.offset.fetch_or(kAside, std::memory_order_relaxed);  // relaxed: under the lock
  return 0;
}

// One that is stopped holds up the others: no compare-and-swap of 16 bytes is known here.
Pipe::Done Pipe::receive_shared(const iovec* buffers, int count, bool peek) {
  return receive(buffers, count, peek);
}

#endif

}  // namespace clan

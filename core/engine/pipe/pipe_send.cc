// Pipe: the side that sends.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "clan/detail/clock.h"
#include "clan/detail/cpu.h"
#include "clan/detail/words.h"
#include "engine/pipe/application_buffers.h"
#include "engine/pipe/pipe_lock.h"
#include "engine/pipe/pipe_parts.h"

namespace clan {

using namespace pipes;

namespace {

/// takes one line
constexpr std::uint64_t kLeastPiece = kCacheLine - shm::kRingHeadBytes - kStampBytes;

shm::RingProducer load(const PipePage::Sender& s) {
  auto relaxed = std::memory_order_relaxed;  // under the lock
  return {s.tail.load(relaxed),    s.bound.load(relaxed),   s.consumed.load(relaxed),
          s.look_at.load(relaxed), s.skip_at.load(relaxed), s.jump_at.load(relaxed),
          s.jump_gap.load(relaxed)};
}

void store(PipePage::Sender& s, const shm::RingProducer& p) {
  auto relaxed = std::memory_order_relaxed;  // under the lock
  s.bound.store(p.bound, relaxed);
  s.consumed.store(p.consumed, relaxed);
  s.look_at.store(p.look_at, relaxed);
  s.skip_at.store(p.skip_at, relaxed);
  s.jump_at.store(p.jump_at, relaxed);
  s.jump_gap.store(p.jump_gap, relaxed);
  // PAIR pipe.lock: last, so that a process that is killed here has stored all or is found out
  words::store_release(s.tail, p.tail);
}

// After a record that was planned by reserve() has been published.
void advance(const shm::RecordRing& ring, PipePage::Sender& s, shm::RingProducer& p,
             const shm::RingSlot& slot, std::uint64_t most) {
  auto relaxed = std::memory_order_relaxed;  // under the lock
  ring.advance(p, slot, most);
  // Until we are here again.
  const std::uint64_t touched = std::min(std::max(ring.index(p.tail) + 1, p.bound), ring.lines);
  if (touched > s.touched.load(relaxed)) s.touched.store(touched, relaxed);
  store(s, p);
}

}  // namespace

// The other end has slept or answered since this was last asked: no stream without a pause. Under
// the lock.
bool Pipe::is_calm() const {
  auto& mine = page_->ends[end_];
  auto relaxed = std::memory_order_relaxed;  // hints
  const std::uint64_t head = mine.receiver.head.load(relaxed);
  const bool calm =
      mine.sender.rang.load(relaxed) != 0 || mine.sender.answered.load(relaxed) != head;
  mine.sender.rang.store(0, relaxed);
  mine.sender.answered.store(head, relaxed);
  return calm;
}

// Plans a record of `n` bytes, or of fewer. 1 = planned, 0 = no room, -1 = broken.
int Pipe::plan(PipeRoom room, shm::RingProducer& p, std::uint64_t* most, std::uint64_t* n,
               shm::RingSlot* slot) const {
  const shm::RecordRing ring{lines_};
  p = load(page_->ends[end_].sender);
  p.calm = is_calm();
  *most = most_lines(end_, room);
  auto& peer = page_->ends[1 - end_].receiver;
  // PAIR pipe.credit: the reader has finished with the lines before it
  auto credit = [&] { return words::load_acquire(peer.credit); };
  // A line stays for put_last().
  int rc = ring.reserve(p, kStampBytes + *n + kCacheLine, *most + 1, credit, slot);
  while (rc == 0 && *n > kLeastPiece) {  // not all of it: then part of it
    *n /= 2;
    rc = ring.reserve(p, kStampBytes + *n + kCacheLine, *most + 1, credit, slot);
  }
  slot->lines = shm::lines_for(kStampBytes + *n);
  if (rc < 0) broke("impossible credit");
  return rc;
}

// Under the lock, which a thread had when it was killed: moves the cursors past the record that it
// may have published. What it had only written is written over.
void Pipe::finish_record() const {
  auto& sender = page_->ends[end_].sender;
  const shm::RecordRing ring{lines_};
  auto p = load(sender);
  shm::RingConsumer c{p.tail, 0};
  shm::RingRecord record;
  const int rc = ring.peek(c, out_, &record);
  if (rc < 0) return broke("impossible record");
  p.bound = 0;
  if (rc > 0) {
    shm::RingSlot slot{c.head, record.lines, 0, p.tail};
    // relaxed: of this end
    const shm::RingHead first{
        shm::head_at(out_, ring.index(p.tail)).load(std::memory_order_relaxed)};
    if (c.head != p.tail) slot.hop = first.type();
    const std::uint8_t type = record.head.type();
    // First, as in put_last(). relaxed: under the lock
    if (type != kBytesRecord)
      sender.ended.store(type == kEndRecord ? 1 : 2, std::memory_order_relaxed);
    advance(ring, sender, p, slot, most_lines(end_, PipeRoom::kWhole));
    if (type == kBytesRecord && record.head.length() > kStampBytes)
      add(sender.bytes, record.head.length() - kStampBytes);
  } else {
    store(sender, p);
  }
}

Pipe::Done Pipe::send(const iovec* buffers, int count, PipeRoom room) {
  Done done;
  auto& sender = page_->ends[end_].sender;
  auto& peer = page_->ends[1 - end_].receiver;
  const std::size_t wanted = total(buffers, count);
  if (wanted == 0) return done;
  {
    const Locked lock(*this, locks().sending);
    if ((done.err = lock.err()) != 0) return done;
    if (broken()) return {0, false, EPROTO};
    if (sender.ended.load(std::memory_order_relaxed) != 0) return {0, false, EPIPE};
    const shm::RecordRing ring{lines_};
    const std::uint64_t piece =
        std::min<std::uint64_t>(shm::kRingPiece, ring.max_payload()) - kStampBytes;
    const PipeStamp stamp = PipeStamp::make(order_stamp(), t_thread.last_kernel_write);
    const std::uint16_t cpu = current_cpu_tag();
    Cursor cursor(buffers, count);
    while (done.bytes < wanted) {
      std::uint64_t n = std::min<std::uint64_t>(wanted - done.bytes, piece);
      // under the lock, as is the bound
      const std::uint64_t tail = sender.tail.load(std::memory_order_relaxed);
      shm::RingSlot slot;
      shm::RingProducer p;
      std::uint64_t most = 0;
      const bool follows =
          ring.follow(tail, sender.bound.load(std::memory_order_relaxed), kStampBytes + n, &slot);
      if (!follows) [[unlikely]] {
        const int rc = plan(room, p, &most, &n, &slot);
        if (rc < 0) return {0, false, EPROTO};
        if (rc == 0) break;
      }
      std::byte* payload = ring.payload_at(out_, slot);
      std::memcpy(payload, &stamp, kStampBytes);
      auto copy = [&] { cursor.gather(payload + kStampBytes, n); };
      if (!guarded(copy)) {
        done.err = EFAULT;
        break;
      }
      ring.publish(
          out_, slot,
          shm::RingHead::make(static_cast<std::uint32_t>(kStampBytes + n), kBytesRecord, cpu));
      if (follows) {
        words::store_release(sender.tail, tail + slot.lines);  // PAIR pipe.lock: behind the record
      } else {
        advance(ring, sender, p, slot, most);
        if (sender.touched.load(std::memory_order_relaxed) > kSmallLines) note_large();
      }
      done.bytes += n;
      add(sender.bytes, n);
    }
    if (done.bytes == 0) return done;
    add(sender.messages, 1);
  }
  done.must_ring = take_waiting<shm::AsymmetricFence>(peer.waiting);
  if (done.must_ring) sender.rang.store(1, std::memory_order_relaxed);  // relaxed: a hint
  return done;
}

Pipe::Done Pipe::put_last(std::uint8_t type) {
  Done done;
  auto& sender = page_->ends[end_].sender;
  auto& peer = page_->ends[1 - end_].receiver;
  {
    const Locked lock(*this, locks().sending);
    if ((done.err = lock.err()) != 0) return done;
    if (broken()) return {0, false, EPROTO};
    if (sender.ended.load(std::memory_order_relaxed) != 0) return {0, false, EPIPE};
    const shm::RecordRing ring{lines_};
    auto p = load(sender);
    shm::RingSlot slot;
    auto credit = [&] { return words::load_acquire(peer.credit); };  // PAIR pipe.credit
    const int rc = ring.reserve(p, kStampBytes, lines_, credit, &slot);
    if (rc <= 0) {  // there always is a line
      broke("impossible credit");
      return {0, false, EPROTO};
    }
    const PipeStamp stamp = PipeStamp::make(order_stamp(), t_thread.last_kernel_write);
    std::memcpy(ring.payload_at(out_, slot), &stamp, kStampBytes);
    ring.publish(out_, slot, shm::RingHead::make(kStampBytes, type, current_cpu_tag()));
    // First: a process that is killed before the tail moves leaves the record to finish_record().
    sender.ended.store(type == kEndRecord ? 1 : 2, std::memory_order_relaxed);
    advance(ring, sender, p, slot, lines_);
    done.bytes = 1;
  }
  done.must_ring = take_waiting<shm::AsymmetricFence>(peer.waiting);
  return done;
}

Pipe::Done Pipe::end_sending() { return put_last(kEndRecord); }
Pipe::Done Pipe::leave() { return put_last(kLeaveRecord); }

void Pipe::note_kernel_write() { t_thread.last_kernel_write = order_stamp(); }

// Without the lock: a cursor that another thread has half moved says "room" once too often at
// worst.
bool Pipe::has_room(int end, PipeRoom room) const {
  const auto& peer = page_->ends[1 - end].receiver;
  const shm::RecordRing ring{lines_};
  auto p = load(page_->ends[end].sender);
  shm::RingSlot slot;
  const std::uint64_t most = most_lines(end, room);
  // PAIR pipe.credit
  const std::uint64_t seen = words::load_acquire(peer.credit);
  if (seen - p.consumed <= p.tail - p.consumed) p.consumed = seen;
  // Not at the first free line: a thread that is woken for room should find some.
  const std::uint64_t used = ring.used(p);
  const bool within =
      used <= (room == PipeRoom::kWhole ? most - most / 3 : most - most / 8) || used > lines_;
  return within && ring.reserve(
                       p, kCacheLine, lines_, [&] { return p.consumed; }, &slot) != 0;
}

bool Pipe::writable(PipeRoom room) const {
  return broken() || has_room(end_, room);  // broken: the call that is made then says why
}

std::uint64_t Pipe::unread_by_peer() const {
  const std::uint64_t sent = page_->ends[end_].sender.bytes.load(std::memory_order_relaxed);
  const std::uint64_t got = page_->ends[1 - end_].receiver.bytes.load(std::memory_order_relaxed);
  const std::uint64_t unread = sent - got;
  return unread > bytes_ ? 0 : unread;  // the peer's word
}

}  // namespace clan

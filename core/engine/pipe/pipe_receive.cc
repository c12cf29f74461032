// Pipe: the side that receives.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "clan/detail/words.h"
#include "engine/pipe/application_buffers.h"
#include "engine/pipe/pipe_lock.h"
#include "engine/pipe/pipe_parts.h"

namespace clan {

using namespace pipes;

namespace {

constexpr int kMostLooks = 64;  ///< at a head that moves

enum class Copied { kBytes, kFault, kBroken, kNoBytes };

// Copies at most `most` bytes of a record, of which `offset` have been read. `n`: as many as there
// were to copy.
Copied copy_out(const shm::RingRecord& record, std::uint64_t offset, std::uint64_t most,
                Cursor& cursor, std::uint64_t* n) {
  if (record.head.type() != kBytesRecord) return Copied::kNoBytes;
  // Nobody sends an empty one, and a ring full of them has no end.
  if (record.head.length() <= kStampBytes || record.head.length() > shm::kRingPiece)
    return Copied::kBroken;
  const std::uint64_t length = record.head.length() - kStampBytes;
  if (offset > length) return Copied::kBroken;
  *n = std::min(length - offset, most);
  auto copy = [&] { cursor.scatter(record.payload + kStampBytes + offset, *n); };
  return guarded(copy) ? Copied::kBytes : Copied::kFault;
}

}  // namespace

bool Pipe::sleeps_for_room(bool drained) const {
  const auto enough = [&](std::uint32_t wanted) {
    return drained ||
           has_room(1 - end_, wanted == kWindowWanted ? PipeRoom::kWindow : PipeRoom::kWhole);
  };
  return take_waiting_for_room<shm::AsymmetricFence>(page_->ends[1 - end_].sender.waiting, enough);
}

PipeFront Pipe::front() const {
  if (broken()) return PipeFront::kBroken;
  if (seems_empty()) return PipeFront::kNothing;
  const auto& receiver = page_->ends[end_].receiver;
  if (is_aside(receiver)) return PipeFront::kLeave;
  const shm::RecordRing ring{lines_};
  // Without the lock: nobody writes over a record before the head has passed it. So what is found
  // at a head that is still the head is the record there.
  for (int looks = 0; looks < kMostLooks; ++looks) {
    // PAIR pipe.front: if it has changed, so has what we read
    const std::uint64_t head = words::load_acquire(receiver.head);
    shm::RingConsumer c{head, 0};
    shm::RingRecord record;
    const int rc = ring.peek(c, in_, &record);  // its loads are acquire: the next one comes after
    if (words::load_acquire(receiver.head) != head) continue;
    if (rc == 0) return PipeFront::kNothing;
    if (rc > 0 && record.head.type() == kBytesRecord) return PipeFront::kBytes;
    if (rc > 0 && record.head.type() == kEndRecord) return PipeFront::kEnd;
    if (rc > 0 && record.head.type() == kLeaveRecord) return PipeFront::kLeave;
    broke(rc < 0 ? "impossible record" : "a record of no kind");
    return PipeFront::kBroken;
  }
  return PipeFront::kBytes;  // somebody is reading them, one after the other
}

PipeStamp Pipe::front_stamp() const {
  const shm::RecordRing ring{lines_};
  shm::RingConsumer c{page_->ends[end_].receiver.head.load(std::memory_order_relaxed), 0};
  shm::RingRecord record;
  PipeStamp stamp;
  if (ring.peek(c, in_, &record) > 0 && record.head.length() >= kStampBytes) {
    std::memcpy(&stamp, record.payload, kStampBytes);
  }
  return stamp;
}

bool Pipe::seems_empty() const {
  // relaxed: a glance
  const std::uint64_t head = page_->ends[end_].receiver.head.load(std::memory_order_relaxed);
  return shm::RecordRing{lines_}.is_empty(in_, head) && !broken();
}

namespace {

/// The lines that have been read are the writer's again.
void give_back(PipePage::Receiver& receiver, shm::RingConsumer& c) {
  c.published = c.head;
  // PAIR pipe.front: before it is written over
  words::store_release(receiver.head, c.head);
  // PAIR pipe.credit: we have finished with them
  words::store_release(receiver.credit, c.head);
}

/// A call has read up to `offset` of the record at c.head, `bytes` more. One that is killed here
/// may have counted bytes that another one reads again; the other end takes too many for none.
void move_on(PipePage::Receiver& receiver, shm::RingConsumer& c, std::uint64_t offset,
             std::uint64_t bytes, bool gives_back) {
  add(receiver.bytes, bytes);
  if (gives_back) {
    give_back(receiver, c);
  } else {
    words::store_release(receiver.head, c.head);  // PAIR pipe.front: as above
  }
  // relaxed: under the lock
  receiver.published.store(c.published, std::memory_order_relaxed);
  const std::uint32_t aside = receiver.offset.load(std::memory_order_relaxed) & kAside;
  // PAIR pipe.lock: behind the head, for one that takes the lock of a dead process
  words::store_release(receiver.offset, offset_word(c.head, offset) | aside);
}

}  // namespace

void Pipe::writer_has_gone() {
  if (last_line_.load(std::memory_order_relaxed) != 0) return;  // relaxed: of this process
  // Of lines that were passed over there are no more than a ring either. relaxed: a bound
  const std::uint64_t head = page_->ends[end_].receiver.head.load(std::memory_order_relaxed);
  last_line_.store(head + 2 * lines_, std::memory_order_relaxed);  // relaxed: as above
}

Pipe::Done Pipe::receive(const iovec* buffers, int count, bool peek) {
  Done done;
  auto& receiver = page_->ends[end_].receiver;
  const std::size_t wanted = total(buffers, count);
  bool published = false, drained = false;
  {
    const Locked lock(*this, locks().receiving);
    if ((done.err = lock.err()) != 0) return done;
    if (broken()) return {0, false, EPROTO};
    if (is_aside(receiver) != takes_aside_) return done;
    auto relaxed = std::memory_order_relaxed;  // under the lock
    const shm::RecordRing ring{lines_};
    shm::RingConsumer c{receiver.head.load(relaxed), receiver.published.load(relaxed)};
    std::uint64_t counted = 0, offset = offset_at(c.head, receiver.offset.load(relaxed));
    const std::uint64_t last_line = last_line_.load(relaxed);
    Cursor cursor(buffers, count);
    const auto most = [this] { return most_lines(1 - end_, PipeRoom::kWhole); };
    shm::RingRecord record;
    int rc = last_line != 0 && c.head >= last_line ? -1 : 0;
    while (rc >= 0 && done.bytes < wanted && (rc = ring.peek(c, in_, &record)) > 0) {
      std::uint64_t n = 0;
      const Copied copied = copy_out(record, offset, wanted - done.bytes, cursor, &n);
      if (copied != Copied::kBytes) {
        if (copied == Copied::kFault) done.err = EFAULT;
        if (copied == Copied::kBroken) rc = -1;
        break;
      }
      peer_cpu_.store(record.head.cpu(), std::memory_order_relaxed);  // relaxed: a hint
      done.bytes += n;
      offset += n;
      if (offset == record.head.length() - kStampBytes) {
        offset = 0;
        if (ring.consume(c, in_, record, most) && !peek) {
          // As it goes: an offset of long ago would be taken for one of a head far ahead.
          move_on(receiver, c, 0, done.bytes - counted, true);
          counted = done.bytes;
          published = true;
        }
      }
    }
    if (rc < 0) {
      broke("impossible record");
      return {0, false, EPROTO};
    }
    if (peek) return done;
    drained = rc == 0;
    const bool gives_back = drained && c.head - c.published >= ring.keep_up();
    published |= gives_back;
    move_on(receiver, c, offset, done.bytes - counted, gives_back);
  }
  if (published) done.must_ring = sleeps_for_room(drained);
  return done;
}

std::uint64_t Pipe::readable_bytes() const {
  const auto& receiver = page_->ends[end_].receiver;
  const shm::RecordRing ring{lines_};
  const Locked lock(*this, locks().receiving);
  if (lock.err() != 0 || broken() || is_aside(receiver)) return 0;
  shm::RingConsumer c{receiver.head.load(std::memory_order_relaxed), 0};
  shm::RingRecord record;
  std::uint64_t bytes = 0;
  // The lines of one turn: a peer may leave heads that go on for ever.
  for (std::uint64_t left = lines_;
       ring.peek(c, in_, &record) > 0 && record.head.type() == kBytesRecord && record.lines <= left;
       left -= record.lines) {
    bytes += record.head.length() - std::min<std::uint64_t>(record.head.length(), kStampBytes);
    c.head += record.lines;
  }
  const std::uint64_t head = receiver.head.load(std::memory_order_relaxed);
  return bytes - std::min(bytes, offset_at(head, receiver.offset.load(std::memory_order_relaxed)));
}

int Pipe::set_aside() {
  auto& receiver = page_->ends[end_].receiver;
  const Locked lock(*this, locks().receiving);
  if (lock.err() != 0) return lock.err();
  if (broken()) return EPROTO;
  if (is_aside(receiver)) return EALREADY;
  receiver.offset.fetch_or(kAside, std::memory_order_relaxed);  // relaxed: under the lock
  return 0;
}

bool Pipe::take_aside() { return takes_aside_ = is_aside(page_->ends[end_].receiver); }

}  // namespace clan

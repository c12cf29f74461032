// Pipe: bytes that its end has set aside, for a process that sends them by another way. They stay
// where they are, and nobody moves them: the writer has put its last record, and no call receives
// any more. Each finds kLeave in front.
//
// set_aside() answers 0, EALREADY if that had been done, EDEADLK in a handler that interrupts a
// receive, or EPROTO. copy_aside() copies at most `most` bytes, from the `from`th on, and answers
// how many; 0: there are no more; -1: what lies there is impossible. `place` is the caller's, and
// best goes forward.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/pipe/pipe_lock.h"
#include "engine/pipe/pipe_parts.h"

namespace clan {

using namespace pipes;

int Pipe::set_aside() {
  auto& receiver = page_->ends[end_].receiver;
  const Locked lock(*this, locks().receiving);
  if (lock.err() != 0) return lock.err();
  if (broken()) return EPROTO;
  if (is_aside(receiver)) return EALREADY;
  receiver.offset.fetch_or(kAside, std::memory_order_relaxed);  // relaxed: under the lock
  return 0;
}

long Pipe::copy_aside(PipeAside* place, std::uint64_t from, void* to, std::size_t most) const {
  const auto& receiver = page_->ends[end_].receiver;
  // relaxed: they stay as they are; whatever the other end writes there, a record is in the ring
  const std::uint32_t offset = receiver.offset.load(std::memory_order_relaxed);
  if ((offset & kAside) == 0 || from > bytes_) return -1;
  if (!place->begun || from < place->bytes) {
    const std::uint64_t head = receiver.head.load(std::memory_order_relaxed);
    *place = {true, head, offset_at(head, offset), 0};
  }
  const shm::RecordRing ring{lines_};
  std::size_t copied = 0;
  shm::RingRecord record;
  while (copied < most) {
    shm::RingConsumer c{place->head, 0};
    const int rc = ring.peek(c, in_, &record);
    if (rc < 0) return -1;
    if (rc == 0 || record.head.type() != kBytesRecord) break;
    place->head = c.head;
    if (record.head.length() <= kStampBytes) return -1;
    const std::uint64_t length = record.head.length() - kStampBytes;
    if (place->offset > length) return -1;
    const std::uint64_t left = length - place->offset, skipped = from - place->bytes;
    if (skipped >= left) {
      *place = {true, c.head + record.lines, 0, place->bytes + left};
      continue;
    }
    const std::size_t n = std::min<std::uint64_t>(left - skipped, most - copied);
    std::memcpy(static_cast<std::byte*>(to) + copied,
                record.payload + kStampBytes + place->offset + skipped, n);
    copied += n;
    from += n;
  }
  return static_cast<long>(copied);
}

}  // namespace clan

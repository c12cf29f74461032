// Ring: records from one producer to one consumer through cache lines that carry their own flag.
//
// This is the Distributed Message Queue of the papers (clan-distributed-computing 2.1) in its fast
// form: instead of a separately written index, the first word of a record says that the record is
// there, so that a small message moves one cache line and nothing else.
//
//      line 0        line 1        line 2        line 3        line 4 ...
//     +------+------+-------------+-------------+------+------+------+
//     | head | payload of record A (k = 3)      | head | B    |  0   |   <- 0: nothing here yet
//     +------+------+-------------+-------------+------+------+------+
//      8 B    56 B    64 B          64 B          8 B           terminator
//
// A record of n bytes takes k = ceil((8 + n) / 64) consecutive lines. The producer, in this order:
//   1. makes sure that k + 1 lines are free (the +1 is the terminator's)
//   2. copies the payload
//   3. stores 0 into the head of line k (the terminator: stale bytes there must never look like a
//      head)
//   4. stores the head of line 0 with release
// and the consumer polls the head of the line it is at. Because 3 precedes 4, the consumer can read
// a line only after the producer has put a terminator or a head there.
//
// A record never wraps: a `skip` record sends both sides to line 0. The producer also skips when
// the consumer keeps up with it and it has walked a quarter of the ring: a light connection keeps
// to that. The lines it has skipped are of no use until the consumer passes them, so a quarter is
// also what always fits in while nobody reads.
//
// Flow control: the consumer publishes how many lines it has consumed, rarely (an eighth of the
// ring, or half a page when it finds the ring empty), in a word that lies on the producer's side of
// the network.
//
// Positions count lines and never wrap in 64 bits; index = position mod lines. Cursors are plain
// structs: they live wherever their one writer wants them. Everything read from memory the other
// side can write is checked: a head is loaded once, its length bounded; a consumed position must
// lie between the last one and the tail. A violation makes the ring `broken` and the connection is
// reset.
//
// If the producer dies: before 4 the consumer sees nothing of that record; after 4 all of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "clan/detail/cpu.h"
#include "shm/ring_geometry.h"

namespace clan::shm {

/// Written by the producer only.
struct RingProducer {
  std::uint64_t tail = 0;      ///< next line to write
  std::uint64_t consumed = 0;  ///< what the consumer had published at the last read
  /// index at which to check whether the ring is empty, 0: the first such
  std::uint64_t next_rewind = 0;
};

/// Written by the consumer only.
struct RingConsumer {
  std::uint64_t head = 0;       ///< next line to read; written by the reading thread, by advance()
  std::uint64_t published = 0;  ///< what the consumer has reported to the producer

  void advance(std::uint64_t lines) {
    std::atomic_ref(head).store(head + lines, std::memory_order_relaxed);  // relaxed: see glance()
  }
  /// `head` for a thread that only watches: it may be old, and then a record is seen once more.
  std::uint64_t glance() {
    // relaxed: nothing is read by it but a head
    return std::atomic_ref(head).load(std::memory_order_relaxed);
  }
};

/// Where a record goes: the lines to write, found by ring_reserve().
struct RingSlot {
  std::uint64_t skip_at = 0;  ///< position of a skip record to write first, when `skips`
  bool skips = false;
  std::uint64_t position = 0;  ///< of the record
  std::uint64_t lines = 0;
};

/// Plans a record of `payload` bytes. `load_consumed()` gives the consumer's published position and
/// is called only when the cached one does not do. Returns 1 = planned, 0 = no room, -1 = broken.
template <typename LoadConsumed>
int ring_reserve(const RingGeometry& ring, RingProducer& p, std::uint64_t payload,
                 LoadConsumed&& load_consumed, RingSlot* slot) {
  const std::uint64_t k = lines_for(payload);
  std::uint64_t index = ring.index(p.tail);
  auto refresh = [&] {
    std::uint64_t seen = load_consumed();
    // Input: it may only move forward, and not past what was produced.
    if (seen - p.consumed > p.tail - p.consumed) return false;
    p.consumed = seen;
    return true;
  };
  bool skips = index + k > ring.lines;
  const std::uint64_t look_at = p.next_rewind != 0 ? p.next_rewind : ring.first_rewind();
  if (!skips && index >= look_at) {
    // Doubling steps: a busy ring asks log2(lines) times a lap, a quiet one rewinds at once.
    if (!refresh()) return -1;
    // All that is unread lies just behind us, so the lines at the front are free.
    if (p.tail - p.consumed <= kRingKeepUp && k + 1 + kRingKeepUp <= index) skips = true;
    p.next_rewind = look_at < ring.lines ? look_at * 2 : ring.lines;
  }
  std::uint64_t needed = (skips ? ring.lines - index : 0) + k + 1;
  if (ring.lines - (p.tail - p.consumed) < needed) {
    if (!refresh()) return -1;
    if (ring.lines - (p.tail - p.consumed) < needed) {
      // A rewind is a courtesy, not worth waiting for.
      if (!skips || index + k > ring.lines) return 0;
      skips = false;
      if (ring.lines - (p.tail - p.consumed) < k + 1) return 0;
    }
  }
  slot->skips = skips;
  slot->skip_at = p.tail;
  slot->position = skips ? p.tail + (ring.lines - index) : p.tail;
  slot->lines = k;
  return 1;
}

/// Moves the producer past a record that has been written.
inline void ring_advance(const RingGeometry& ring, RingProducer& p, const RingSlot& slot) {
  p.tail = slot.position + slot.lines;
  if (slot.skips || ring.index(p.tail) == 0) p.next_rewind = 0;
}

/// The head word at a line of mapped ring memory.
inline std::atomic<std::uint64_t>& head_at(std::byte* ring, std::uint64_t index) {
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(ring + index * kCacheLine);
}

/// Where the payload of a planned record goes in mapped memory; then ring_publish().
inline std::byte* payload_at(const RingGeometry& ring, std::byte* memory, const RingSlot& slot) {
  return memory + ring.index(slot.position) * kCacheLine + kRingHeadBytes;
}

/// Publishes a record whose payload is written: terminator, head and skip (if planned), in this
/// order. `put(index, word)` stores the word at the head of a line, visible after all that was
/// written before.
template <typename Put>
void ring_publish_by(const RingGeometry& ring, const RingSlot& slot, RingHead head, Put&& put) {
  put(ring.index(slot.position + slot.lines), std::uint64_t{0});
  put(ring.index(slot.position), head.word);
  // After the record it leads to, so that the consumer never waits at a line it was sent to.
  if (slot.skips) put(ring.index(slot.skip_at), RingHead::make(0, kRingSkip, head.cpu()).word);
}

/// The same in mapped memory.
inline void ring_publish(const RingGeometry& ring, std::byte* memory, const RingSlot& slot,
                         RingHead head) {
  ring_publish_by(ring, slot, head, [memory](std::uint64_t index, std::uint64_t word) {
    // PAIR ring.head: publishes the payload, the terminator and the record at line 0 to ring_peek
    head_at(memory, index).store(word, std::memory_order_release);
  });
}

/// What the consumer found.
struct RingRecord {
  RingHead head;
  const std::byte* payload = nullptr;
  std::uint64_t lines = 0;
};

/// 1 = a record is there, 0 = nothing yet, -1 = broken (the producer wrote nonsense).
inline int ring_peek(const RingGeometry& ring, RingConsumer& c, std::byte* memory,
                     RingRecord* record) {
  for (;;) {
    std::uint64_t index = ring.index(c.head);
    // PAIR ring.head: sees the payload and the terminator published by ring_publish
    RingHead head{head_at(memory, index).load(std::memory_order_acquire)};
    if (head.word == 0) return 0;
    if (!head.valid()) return -1;
    if (head.type() == kRingSkip) {
      if (index == 0) return -1;  // a skip never leads to itself
      c.advance(ring.lines - index);
      continue;
    }
    const std::uint64_t k = lines_for(head.length());
    if (index + k > ring.lines || head.length() > ring.max_payload()) return -1;
    record->head = head;
    record->payload = memory + index * kCacheLine + kRingHeadBytes;
    record->lines = k;
    return 1;
  }
}

/// True when enough has been consumed to report it to the producer.
inline bool ring_should_publish(const RingGeometry& ring, const RingConsumer& c) {
  return c.head - c.published >= ring.lines / 8;
}

/// The same for a consumer that has found the ring empty.
inline bool ring_should_publish_empty(const RingConsumer& c) {
  return c.head - c.published >= kRingKeepUp;
}

}  // namespace clan::shm

// What a ring (shm/ring.h) is made of: records, their first word, cursors, and its consumer.
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
// If the producer dies: before 4 the consumer sees nothing of that record; after 4 all of it.
//
// Flow control: rarely (when the ring is empty, or after a good part of it) the consumer publishes
// how many lines it has consumed, on the producer's side of the network.
//
// Positions count lines, also skipped ones, and never wrap in 64 bits; index = position mod lines.
// Cursors are plain structs, wherever their one writer wants them. All that the other side can
// write is checked: a head is loaded once, its length bounded; a consumed position must lie between
// the last one and the tail. A violation makes the ring `broken` and resets the connection.
// Whatever a pipe's cursors say, in memory that the peer can write, a slot lies inside the ring.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "clan/detail/cpu.h"

namespace clan::shm {

/// The word that begins a record. 0 = nothing here.
///   bits 0..31 payload bytes | 32..39 type | 40..55 the producer's processor + 1 | 56..63 kHeadTag
struct RingHead {
  std::uint64_t word = 0;

  static constexpr std::uint64_t kHeadTag = 0xc1;
  static constexpr RingHead make(std::uint32_t length, std::uint8_t type, std::uint16_t cpu) {
    return {length | std::uint64_t{type} << 32 | std::uint64_t{cpu} << 40 | kHeadTag << 56};
  }
  std::uint32_t length() const { return static_cast<std::uint32_t>(word); }
  std::uint8_t type() const { return static_cast<std::uint8_t>(word >> 32); }
  std::uint16_t cpu() const { return static_cast<std::uint16_t>(word >> 40); }
  bool valid() const { return word >> 56 == kHeadTag; }
};

constexpr std::uint8_t kRingSkip = 0xff;  ///< go on at line 0
constexpr std::uint8_t kRingJump = 0xfe;  ///< go on at the line in the head's length
constexpr std::size_t kRingHeadBytes = sizeof(RingHead);
constexpr std::size_t kMinRingLines = 16;
/// Raised by any change to what lies in a ring, so that hosts of two versions refuse each other.
constexpr std::uint32_t kRingVersion = 2;

/// A long transfer's piece, so that both sides copy at once. With its head, 16 KB.
constexpr std::uint64_t kRingPiece = 16 * 1024 - kRingHeadBytes;

constexpr std::uint64_t lines_for(std::uint64_t payload) {
  return (kRingHeadBytes + payload + kCacheLine - 1) / kCacheLine;
}

/// Written by the producer only.
struct RingProducer {
  std::uint64_t tail = 0;      ///< next line to write
  std::uint64_t bound = 0;     ///< index up to which records follow() each other; 0: not known
  std::uint64_t consumed = 0;  ///< what the consumer had published at the last read
  /// index at which to check whether the consumer keeps up; 0: the first such
  std::uint64_t look_at = 0;
  std::uint64_t skip_at = 0;   ///< position of the last skip, 0: none yet
  std::uint64_t jump_at = 0;   ///< of the last jump
  std::uint64_t jump_gap = 0;  ///< lines it leads over, its own among them
  /// not stored: the consumer has slept or answered since the last check
  bool calm = true;
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

/// Where a record goes: the lines to write, found by RecordRing::reserve().
struct RingSlot {
  std::uint64_t position = 0;  ///< of the record
  std::uint64_t lines = 0;
  std::uint8_t hop = 0;    ///< 0, kRingSkip or kRingJump
  std::uint64_t from = 0;  ///< with a hop: the tail before it, where that goes
};

/// What the consumer found.
struct RingRecord {
  RingHead head;
  const std::byte* payload = nullptr;
  std::uint64_t lines = 0;
};

/// The head word at a line of mapped ring memory.
inline std::atomic<std::uint64_t>& head_at(std::byte* ring, std::uint64_t index) {
  return *reinterpret_cast<std::atomic<std::uint64_t>*>(ring + index * kCacheLine);
}

/// The geometry of a ring, and what its consumer does.
struct RingReader {
  std::uint64_t lines = 0;  ///< a power of two

  std::uint64_t index(std::uint64_t position) const { return position & (lines - 1); }
  /// The largest payload: a quarter of the ring, so that both sides always have something to do.
  std::uint64_t max_payload() const { return lines / 4 * kCacheLine - kRingHeadBytes; }
  /// Lines the consumer may have read and not published when it finds the ring empty.
  std::uint64_t keep_up() const { return std::min<std::uint64_t>(16, lines / 16); }

  /// 1 = a record is there, 0 = nothing yet, -1 = broken (the producer wrote nonsense).
  int peek(RingConsumer& c, std::byte* memory, RingRecord* record) const {
    for (int hops = 0; hops <= 2; ++hops) {  // behind a hop there is a record
      const std::uint64_t at = index(c.head);
      // PAIR ring.head: sees the payload and the terminator published by publish()
      const RingHead head{head_at(memory, at).load(std::memory_order_acquire)};
      if (head.word == 0) return 0;
      if (!head.valid()) return -1;
      if (head.type() == kRingSkip) {
        if (at == 0) return -1;
        c.advance(lines - at);
        continue;
      }
      if (head.type() == kRingJump) {
        if (head.length() == at || head.length() >= lines) return -1;
        c.advance(index(head.length() - at));
        continue;
      }
      const std::uint64_t k = lines_for(head.length());
      if (at + k > lines || head.length() > max_payload()) return -1;
      record->head = head;
      record->payload = memory + at * kCacheLine + kRingHeadBytes;
      record->lines = k;
      return 1;
    }
    return -1;
  }

  /// A glance at whether there is nothing at a position of the consumer's.
  bool is_empty(std::byte* memory, std::uint64_t position) const {
    // relaxed: peek() acquires
    return head_at(memory, index(position)).load(std::memory_order_relaxed) == 0;
  }

  /// Moves past a record that was read. True: publish the position. `most()`: the producer's lines.
  template <typename Most>
  bool consume(RingConsumer& c, std::byte* memory, const RingRecord& record, Most&& most) const {
    c.advance(record.lines);
    // A reader of one record an event never finds the ring empty, and looks cost the producer.
    const std::uint64_t unpublished = c.head - c.published;
    if (((unpublished ^ (unpublished - record.lines)) & ~(keep_up() - 1)) == 0) [[likely]]
      return false;
    return is_empty(memory, c.head) || unpublished >= std::min<std::uint64_t>(1024, most() / 8);
  }
};

}  // namespace clan::shm

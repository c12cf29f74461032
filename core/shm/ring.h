// RecordRing: records from one producer to one consumer through cache lines that carry their own
// flag.
//
// The Distributed Message Queue (clan-distributed-computing 2.1), in its fast form: a record's
// first word says that it is there, so a small message moves one cache line (shm/ring_record.h).
//
// Mostly little of the ring is in use, but one that wraps only at its end touches all of its
// memory, and no cache holds a thousand. So the producer goes back to line 0 once the consumer
// keeps up:
//
//      0                 48                                                              lines - 1
//      | A | B | C | ... | Z |skip|                                                              |
//        ^                    the consumer is here at most; then it goes on at line 0
//
// If it does not come, the room before it is soon used up, and everything behind the skip is free.
// Then the producer jumps once over what is unread, and goes on behind it:
//
//      | P | Q | R |jump|... not read yet ...|skip| S | T | U | ...
//
// A skip leads to line 0, a jump further on. No record wraps or takes the last line, a skip's. One
// skip and one jump at most are on their way.
#pragma once

#include <algorithm>

#include "shm/ring_record.h"

namespace clan::shm {

/// A ring as its producer uses it, too; the memory belongs to an aperture or a pipe.
struct RecordRing : RingReader {
  /// A light connection stays in the first page.
  std::uint64_t first_look() const { return std::min<std::uint64_t>(48, lines / 4); }
  /// Where a stream with a busy consumer goes on to, so that the two are at different lines.
  std::uint64_t busy_look() const { return std::min<std::uint64_t>(8192, lines); }

  static bool on_its_way(const RingProducer& p, std::uint64_t at) {
    return at != 0 && p.consumed <= at;
  }

  /// Lines that the consumer has not published, less those no record lies in.
  std::uint64_t used(const RingProducer& p) const {
    std::uint64_t n = p.tail - p.consumed;
    if (on_its_way(p, p.skip_at)) n -= lines - index(p.skip_at);
    if (on_its_way(p, p.jump_at)) n -= p.jump_gap;
    return n;
  }

  /// Plans a record of `payload` bytes right behind the last one. False: reserve() has to.
  bool follow(std::uint64_t tail, std::uint64_t bound, std::uint64_t payload,
              RingSlot* slot) const {
    *slot = {tail, lines_for(payload)};
    // The record, its terminator and a line to spare. `bound`, too, is memory of the peer's.
    return index(tail) + slot->lines + 2 <= std::min(bound, lines);
  }

  /// Behind reserve() and its record: up to where records follow each other from now on.
  std::uint64_t next_bound(const RingProducer& p, std::uint64_t most) const {
    const std::uint64_t n = used(p), at = index(p.tail);
    if (n >= most) return 0;
    const std::uint64_t look = p.look_at != 0 ? p.look_at : first_look();
    std::uint64_t bound = std::min({look, at + most - n, lines});
    if (on_its_way(p, p.skip_at) && at <= index(p.skip_at))
      bound = std::min(bound, index(p.consumed));
    return bound;
  }

  /// Plans a record with no more than `most` lines used. `load_consumed()`: the consumer's
  /// published position. 1 = planned, 0 = no room, -1 = broken.
  template <typename LoadConsumed>
  int reserve(RingProducer& p, std::uint64_t payload, std::uint64_t most,
              LoadConsumed&& load_consumed, RingSlot* slot) const {
    const std::uint64_t k = lines_for(payload), at = index(p.tail);
    p.bound = 0;
    bool fresh = false;
    auto refresh = [&] {
      fresh = true;
      const std::uint64_t seen = load_consumed();
      // Input: it may only move forward, and not past what was produced.
      if (seen - p.consumed > p.tail - p.consumed) return false;
      p.consumed = seen;
      return true;
    };
    if (used(p) + k > most) {
      if (!refresh()) return -1;
      if (used(p) + k > most) return 0;
    }
    if (at + k + 2 > (p.look_at != 0 ? p.look_at : first_look())) {
      if (!fresh && !refresh()) return -1;
      if (keeps_up(p, at, k)) {
        plan(p, k, kRingSkip, lines - at, slot);
        return 1;
      }
      const std::uint64_t step = std::clamp<std::uint64_t>(at / 2, first_look(), 4096);
      p.look_at = std::max(at + k + step, p.calm || used(p) <= keep_up() ? 0 : busy_look());
    }
    for (;;) {
      if (place(p, at, k, fresh, slot)) return 1;
      if (fresh) return 0;
      if (!refresh()) return -1;
    }
  }

  /// Moves the producer past a record that has been written. `most` as for reserve().
  void advance(RingProducer& p, const RingSlot& slot, std::uint64_t most) const {
    if (slot.hop == kRingSkip) p.skip_at = slot.from, p.look_at = p.calm ? 0 : busy_look();
    if (slot.hop == kRingJump) p.jump_at = slot.from, p.jump_gap = slot.position - slot.from;
    p.tail = slot.position + slot.lines;
    if (p.bound == 0) p.bound = next_bound(p, most);
  }

  std::byte* payload_at(std::byte* memory, const RingSlot& slot) const {
    return memory + index(slot.position) * kCacheLine + kRingHeadBytes;
  }

  /// Publishes a written record: terminator, head, hop, in this order. `put(index, word)` stores
  /// the head of a line, visible after all that precedes.
  template <typename Put>
  void publish_by(const RingSlot& slot, RingHead head, Put&& put) const {
    put(index(slot.position + slot.lines), std::uint64_t{0});
    put(index(slot.position), head.word);
    // After the record it leads to, so that the consumer never waits at a line it was sent to.
    if (slot.hop != 0) {
      const auto to = static_cast<std::uint32_t>(slot.hop == kRingJump ? index(slot.position) : 0);
      put(index(slot.from), RingHead::make(to, slot.hop, head.cpu()).word);
    }
  }

  /// The same in mapped memory.
  void publish(std::byte* memory, const RingSlot& slot, RingHead head) const {
    publish_by(slot, head, [memory](std::uint64_t at, std::uint64_t word) {
      // PAIR ring.head: publishes the payload, the terminator and the record behind a hop to peek()
      head_at(memory, at).store(word, std::memory_order_release);
    });
  }

 private:
  // What has not been read lies just behind us, and before it there is more room than that.
  bool keeps_up(const RingProducer& p, std::uint64_t at, std::uint64_t k) const {
    const std::uint64_t far = std::min(busy_look(), used(p) <= keep_up() ? lines / 4 : lines);
    return !on_its_way(p, p.skip_at) && !on_its_way(p, p.jump_at) && used(p) * 2 <= at &&
           k + 1 <= index(p.consumed) && at >= (p.calm ? 0 : far);
  }

  bool place(const RingProducer& p, std::uint64_t at, std::uint64_t k, bool fresh,
             RingSlot* slot) const {
    plan(p, k, 0, 0, slot);
    const bool forward = at + k < lines;
    if (!on_its_way(p, p.skip_at)) {
      if (forward) return true;
      plan(p, k, kRingSkip, lines - at, slot);
      return k + 1 <= index(p.consumed);
    }
    const std::uint64_t skip = index(p.skip_at);
    if (at > skip) return forward;  // behind a jump
    if (at + k + 1 <= index(p.consumed)) return true;
    plan(p, k, kRingJump, skip + 1 - at, slot);
    return fresh && !on_its_way(p, p.jump_at) && skip + 1 + k < lines;
  }

  static void plan(const RingProducer& p, std::uint64_t k, std::uint8_t hop, std::uint64_t distance,
                   RingSlot* slot) {
    *slot = {p.tail + distance, k, hop, p.tail};
  }
};

}  // namespace clan::shm

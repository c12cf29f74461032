// A channel: one rank's way to another, a ring of cache lines in the receiver's segment. Nothing of
// Open MPI here.
//
//   sender                                    receiver
//   ChannelSender::send_inline(tag, …)   ->   ChannelReceiver::next() -> a Record, in place
//   reserve(), fill in, commit(tag)      ->   the same, the bytes in the bulk area
//                                        <-   `consumed`: how many slots may be used again
//
//   slot ring    | head 8 | 56 bytes | head 8 | …    a record's first slot has a head: it is there,
//   and of which lap bulk area    | 64-byte aligned pieces, for records that are longer than some
//   slots, used in order |
//
// A short record is one cache line and nothing else: its head is in the line that it announces. A
// longer one goes on over the heads of the slots behind. Where such bytes lie the sender clears the
// next head before it publishes a record in front of it; elsewhere the lap tells a new head from an
// old one, and no second line is touched.
//
// A sender whose receiver keeps up goes back to the ring's beginning after some 48 slots: a head of
// kRestart behind a record, published with it. Lines that both have used a moment ago are moved in
// a third less time than those of the whole ring in turn.
//
// What a death leaves: a sender that dies before it has stored the head has sent nothing; after it,
// all of the record is there. A receiver that dies leaves `consumed` where it was: the sender finds
// the ring full, and its owner notices the death (Endpoint::peer_alive()).
//
// Thread-safety: one thread at a time sends on a channel, one at a time receives; which one, the
// caller sees to.
#pragma once

#include <clan/copy.h>
#include <clan/cpu.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace clan::mpi {

constexpr std::uint32_t kSlots = 512;  ///< of a ring; a power of two
/// of a record that fits one slot
constexpr std::size_t kSlotBytes = 56;
constexpr std::uint32_t kMostSlots = 17;                           ///< of one record
constexpr std::size_t kInlineBytes = kMostSlots * kCacheLine - 8;  ///< of a record in the ring
/// Slots after which a lap may end where no more than kUnread of them have not been read.
constexpr std::uint32_t kShortLap = 48, kUnread = 24;
static_assert(kShortLap - kUnread > kMostSlots + 1, "there is room for a record behind kRestart");

enum class RecordKind : std::uint8_t {
  kInline = 1,  ///< all of it is in the ring
  kBulk,        ///< all of it is in the bulk area
  kComing,      ///< no record yet: the beginning of one is in the bulk area (coming_head_of())
  kRestart,     ///< no record: the next one begins the next lap
};

struct alignas(kCacheLine) Slot {
  /// lap 16, kind 8, tag 8, bytes 32 (of the whole record); from the highest bit down. Of kComing:
  /// lap 16, kind 8, first cache line in the bulk area 24, number of lines that are there 16.
  std::atomic<std::uint64_t> head;
  /// The record, or, if it is in the bulk area, its offset there, 4 bytes.
  std::byte data[kSlotBytes];
};
static_assert(sizeof(Slot) == kCacheLine && offsetof(Slot, data) == 8);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// What leads a channel; the slot ring is behind it, then the bulk area.
struct ChannelControl {
  // line 0: written by the sender when it takes the channel and when it leaves, by the receiver
  // when it grants it and when it gives it back
  alignas(kCacheLine) std::atomic<std::uint64_t> owner;  ///< owner_word() in grant.h; 0: nobody's
  std::atomic<std::uint64_t> name;                       ///< of its rank: job << 32 | rank
  std::atomic<std::uint32_t> leaving;                    ///< it sends nothing more
  std::uint32_t reserved;
  // line 1: written by the receiver
  alignas(kCacheLine) std::atomic<std::uint64_t> consumed;  ///< slots, ever
};
static_assert(sizeof(ChannelControl) == 2 * kCacheLine &&
              offsetof(ChannelControl, consumed) == kCacheLine);
static_assert(std::is_standard_layout_v<ChannelControl> &&
              std::is_trivially_destructible_v<ChannelControl>);

/// The parts of one channel, wherever it is mapped.
struct ChannelView {
  ChannelControl* control = nullptr;
  Slot* slots = nullptr;
  std::byte* bulk = nullptr;
  std::uint32_t bulk_bytes = 0;  ///< a power of two
};

/// Never 0: a cleared head is of no lap.
constexpr std::uint64_t lap_of(std::uint64_t position) { return position / kSlots % 0xffff + 1; }
/// Slots of a record in the ring.
constexpr std::uint32_t slots_of(std::size_t bytes) {
  return static_cast<std::uint32_t>((bytes + sizeof(std::uint64_t) + kCacheLine - 1) / kCacheLine);
}
constexpr std::uint64_t head_of(std::uint64_t position, RecordKind kind, std::uint8_t tag,
                                std::uint32_t bytes) {
  return lap_of(position) << 48 | std::uint64_t{static_cast<std::uint8_t>(kind)} << 40 |
         std::uint64_t{tag} << 32 | bytes;
}
constexpr std::uint64_t coming_head_of(std::uint64_t position, std::uint32_t first_line,
                                       std::uint32_t lines) {
  return lap_of(position) << 48 |
         std::uint64_t{static_cast<std::uint8_t>(RecordKind::kComing)} << 40 |
         std::uint64_t{first_line & 0xff'ffff} << 16 | (lines & 0xffff);
}

class ChannelSender {
 public:
  /// Precondition: the control's owner is this process.
  void attach(const ChannelView& view) {
    view_ = view;
    // PAIR channel.consumed: where the owner before us has left off
    produced_ = consumed_ = view.control->consumed.load(std::memory_order_acquire);
    for (std::uint64_t& end : bulk_end_) end = 0;
    // What the owner before us has left in the slots is not known; memory that nobody has used is
    // clear.
    for (bool& dirty : dirty_) dirty = produced_ != 0;
    lap_end_ = kSlots;
    next_restart_ = kShortLap;
    bulk_tail_ = next_look_ = 0;
  }

  /// Precondition: header and payload together are at most kInlineBytes. False: there are not as
  /// many free slots, or not before the ring's end; reserve() may have room.
  bool send_inline(std::uint8_t tag, const void* header, std::size_t header_bytes,
                   const void* payload, std::size_t payload_bytes) {
    const std::uint32_t slots = slots_of(header_bytes + payload_bytes);
    const std::uint32_t index = produced_ % kSlots;
    if (index + slots > kSlots || !slots_free(slots)) [[unlikely]]
      return false;
    std::byte* data = view_.slots[index].data;
    copy_short(data, header, header_bytes);
    copy_short(data + header_bytes, payload, payload_bytes);
    for (std::uint32_t i = 1; i < slots; ++i) dirty_[index + i] = true;
    publish(RecordKind::kInline, tag, static_cast<std::uint32_t>(header_bytes + payload_bytes),
            slots);
    return true;
  }

  /// Room in the bulk area for a header with a payload behind it, and a slot for them, or null. The
  /// payload of a long one begins a cache line. Nothing is sent until commit(); a reservation that
  /// is not committed is as if it had not been made.
  std::byte* reserve(std::size_t header_bytes, std::size_t payload_bytes) {
    if (!slots_free(1)) [[unlikely]]
      return nullptr;
    const std::size_t lead = payload_bytes >= kLong ? -header_bytes % kCacheLine : 0;
    const std::size_t bytes = lead + header_bytes + payload_bytes;
    const std::uint64_t need = (bytes + kCacheLine - 1) & ~std::uint64_t{kCacheLine - 1};
    if (need > view_.bulk_bytes) return nullptr;
    // Now and then a look at what has been taken: where that is all, the next record uses the same
    // lines again.
    if (bulk_tail_ >= next_look_ && consumed_ != produced_) {
      if (!refresh()) return nullptr;
      next_look_ = bulk_tail_ + kLookEvery;
    }
    if (!place(need) && !(refresh() && place(need))) return nullptr;
    reserved_offset_ = static_cast<std::uint32_t>((reserved_at_ & (view_.bulk_bytes - 1)) + lead);
    return view_.bulk + reserved_offset_;
  }
  /// Precondition: reserve() was called for as many bytes.
  void commit(std::uint8_t tag, std::size_t bytes) {
    std::memcpy(view_.slots[produced_ % kSlots].data, &reserved_offset_, sizeof reserved_offset_);
    bulk_tail_ = reserved_end_;
    publish(RecordKind::kBulk, tag, static_cast<std::uint32_t>(bytes), 1);
  }

  /// The first bytes of what has been reserved are there: a receiver that looks brings them into
  /// its caches while the rest is written. commit() or anything else that is sent takes the
  /// announcement's place.
  void announce(std::size_t bytes) {
    const auto lines =
        static_cast<std::uint32_t>((reserved_offset_ % kCacheLine + bytes) / kCacheLine);
    // PAIR channel.head: the lines are there
    view_.slots[produced_ % kSlots].head.store(
        coming_head_of(produced_, static_cast<std::uint32_t>(reserved_offset_ / kCacheLine), lines),
        std::memory_order_release);
  }

  /// The two processors do not share their caches. Lines that the receiver has just read are slow
  /// to write then: the bulk area is used in turns. Where they do share them, the lines used last
  /// are the fastest.
  void set_far(bool far) { far_ = far; }

  /// The receiver's word made no sense: nothing will be sent any more.
  bool broken() const { return broken_; }
  std::uint64_t produced() const { return produced_; }
  /// Whether the receiver has taken all that was sent.
  bool drained() {
    refresh();
    return consumed_ == produced_;
  }

 private:
  /// And the one behind them, if its head has to be cleared.
  bool slots_free(std::uint32_t slots) {
    const std::uint32_t more = to_be_cleared((produced_ + slots) % kSlots) ? 1 : 0;
    const std::uint64_t limit = kSlots - slots - more;
    return produced_ - consumed_ <= limit || (refresh() && produced_ - consumed_ <= limit);
  }

  /// Bytes of a record may lie there, or the head of any lap.
  bool to_be_cleared(std::uint32_t index) const { return dirty_[index] || index >= lap_end_; }

  // Where the next record of that size would lie; false: there is no room.
  bool place(std::uint64_t need) {
    const std::uint64_t mask = view_.bulk_bytes - 1;
    const auto next_lap = [mask](std::uint64_t position) { return (position + mask) & ~mask; };
    if (consumed_ == produced_ && !far_) {
      // All has been taken: begin with the lines that were used last, which are in the caches.
      bulk_tail_ = next_lap(bulk_tail_);
      bulk_end_[(produced_ - 1) % kSlots] = bulk_tail_;
    }
    const std::uint64_t used_from = bulk_end_[(consumed_ - 1) % kSlots];
    std::uint64_t at = bulk_tail_;
    if ((at & mask) + need > view_.bulk_bytes) at = next_lap(at);
    if (at + need - used_from > view_.bulk_bytes) return false;
    reserved_at_ = at;
    reserved_end_ = at + need;
    return true;
  }

  // False: the channel is broken. The receiver's word is input.
  bool refresh() {
    if (broken_) return false;
    // PAIR channel.consumed: the receiver has read what was in these slots
    const std::uint64_t now = view_.control->consumed.load(std::memory_order_acquire);
    if (now < consumed_ || now > produced_) {
      broken_ = true;
      return false;
    }
    consumed_ = now;
    return true;
  }

  void publish(RecordKind kind, std::uint8_t tag, std::uint32_t bytes, std::uint32_t slots) {
    const std::uint32_t index = produced_ % kSlots, next = (produced_ + slots) % kSlots;
    const bool restarts = index + slots >= next_restart_ && may_restart(slots);
    if (restarts) {
      // relaxed, and below: published by the record's head
      view_.slots[next].head.store(head_of(produced_, RecordKind::kRestart, 0, 0),
                                   std::memory_order_relaxed);
    } else if (to_be_cleared(next)) {
      view_.slots[next].head.store(0, std::memory_order_relaxed);
    }
    dirty_[next] = dirty_[index] = false;
    bulk_end_[(produced_ + slots - 1) % kSlots] = bulk_tail_;
    // PAIR channel.head: publishes the record to ChannelReceiver::next()
    view_.slots[index].head.store(head_of(produced_, kind, tag, bytes), std::memory_order_release);
    produced_ += slots;
    if (restarts) {
      end_lap(next);
    } else if (next == 0) {
      lap_end_ = kSlots;
      next_restart_ = kShortLap;
    }
  }

  /// Whether the receiver keeps up, so that the lap may end behind a record of so many slots; if
  /// not, it is asked again some slots later.
  bool may_restart(std::uint32_t slots) {
    const std::uint32_t index = produced_ % kSlots + slots;
    next_restart_ = index + kShortLap / 2;
    return index < kSlots && refresh() && produced_ + slots - consumed_ <= kUnread;
  }
  // What lies behind `index` is of laps before this one, and the next lap that comes there cannot
  // tell of which.
  void end_lap(std::uint32_t index) {
    lap_end_ = index + 1;
    next_restart_ = kShortLap;
    produced_ += kSlots - index;
    bulk_end_[kSlots - 1] = bulk_tail_;
  }

  static constexpr std::size_t kLong = 512;
  static constexpr std::uint64_t kLookEvery = 8 * 1024;  ///< bytes

  ChannelView view_;
  std::uint64_t produced_ = 0;
  std::uint64_t consumed_ = 0;  ///< as last seen
  /// positions in the bulk area only grow; modulo its size they are offsets
  std::uint64_t bulk_tail_ = 0;
  std::uint64_t next_look_ = 0;
  std::uint64_t reserved_at_ = 0;
  std::uint64_t reserved_end_ = 0;
  std::uint32_t reserved_offset_ = 0;
  bool broken_ = false;
  bool far_ = false;
  std::uint64_t bulk_end_[kSlots] = {};  ///< bulk_tail_ behind the record that ends in each slot
  bool dirty_[kSlots] = {};              ///< bytes of a record lie where the slot's head would be
  std::uint32_t lap_end_ = kSlots;       ///< slots that the lap before this one has used
  std::uint32_t next_restart_ = kShortLap;  ///< index from which on the lap may end
};

/// A record that has arrived, in place and in one piece: some of Open MPI's receivers do not count
/// what lies in a second one.
struct Record {
  std::uint8_t tag = 0;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
};

class ChannelReceiver {
 public:
  enum class Next { kNone, kRecord, kNonsense };

  void attach(const ChannelView& view) {
    view_ = view;
    // relaxed: our own word
    cursor_ = published_ = view.control->consumed.load(std::memory_order_relaxed);
    slot_ = &view.slots[cursor_ % kSlots];
    lap_ = lap_of(cursor_);
    broken_ = false;
  }

  /// A glance: is there one?
  bool ready() const {
    // relaxed: a hint; next() acquires
    return slot_->head.load(std::memory_order_relaxed) >> 48 == lap_;
  }

  /// The sender has written nonsense: nothing is taken any more. Where that is found it is set.
  bool broken() const { return broken_; }
  Next break_off() {
    broken_ = true;
    lap_ = kNoLap;
    return Next::kNonsense;
  }

  /// Takes the next record, whose memory stays the sender's to leave alone until publish() has been
  /// called.
  Next next(Record* record) {
    // PAIR channel.head: sees the record
    std::uint64_t head = slot_->head.load(std::memory_order_acquire);
    if (head >> 48 != lap_) return Next::kNone;
    if (static_cast<RecordKind>(head >> 40 & 0xff) == RecordKind::kRestart) [[unlikely]] {
      if (cursor_ % kSlots == 0) return break_off();
      advance(kSlots - static_cast<std::uint32_t>(cursor_ % kSlots));
      // PAIR channel.head: as above
      head = slot_->head.load(std::memory_order_acquire);
      if (head >> 48 != lap_) return Next::kNone;
    }
    const std::size_t bytes = head & 0xffffffff;
    record->tag = static_cast<std::uint8_t>(head >> 32);
    const auto kind = static_cast<RecordKind>(head >> 40 & 0xff);
    std::uint32_t slots = 1;
    if (kind == RecordKind::kInline) [[likely]] {
      slots = slots_of(bytes);
      if (bytes > kInlineBytes || cursor_ % kSlots + slots > kSlots) return break_off();
      record->data = slot_->data;
      // They come while Open MPI looks whose message it is. Of more lines the processor fetches the
      // next ones by itself.
      if (slots <= kFetched) {
        for (std::uint32_t i = 1; i < slots; ++i) __builtin_prefetch(slot_ + i);
      }
    } else if (kind == RecordKind::kComing) {
      return fetch_ahead(head >> 16 & 0xff'ffff, head & 0xffff) ? Next::kNone : break_off();
    } else {
      // Every field is the sender's word, and is read once.
      std::uint32_t offset;
      std::memcpy(&offset, slot_->data, sizeof offset);
      if (kind != RecordKind::kBulk || offset > view_.bulk_bytes ||
          bytes > view_.bulk_bytes - offset) {
        return break_off();
      }
      record->data = view_.bulk + offset;
      bulk_taken_ += bytes;
      fetched_ = 0;
    }
    record->bytes = bytes;
    advance(slots);
    return Next::kRecord;
  }

  /// Calls `use`, which reads the record and may take more of this channel: until it has returned
  /// nothing is given back. A caller that took a record publishes behind its last read(), and with
  /// it what was taken meanwhile.
  template <typename Use>
  void read(const Record& record, Use use) {
    ++readers_;
    use(record);
    --readers_;
  }

  /// Gives back all that has been taken, unless a read() is under way. `must`: also where it is not
  /// worth it yet.
  void publish(bool must) {
    if (readers_ != 0 || cursor_ == published_) return;
    if (!must && cursor_ - published_ < kSlots / 4 && bulk_taken_ < kPublishBytes) return;
    published_ = cursor_;
    bulk_taken_ = 0;
    // PAIR channel.consumed: what was read was read before
    view_.control->consumed.store(cursor_, std::memory_order_release);
  }

  const ChannelView& view() const { return view_; }
  std::uint64_t cursor() const { return cursor_; }

 private:
  void advance(std::uint32_t slots) {
    cursor_ += slots;
    if (cursor_ % kSlots == 0) {
      lap_ = lap_of(cursor_);
      slot_ = view_.slots;
    } else {
      slot_ += slots;
    }
  }

  // False: there are no such lines. The numbers are the sender's word.
  bool fetch_ahead(std::uint64_t first, std::uint64_t lines) {
    if ((first + lines) * kCacheLine > view_.bulk_bytes) return false;
    for (; fetched_ < lines; ++fetched_)
      __builtin_prefetch(view_.bulk + (first + fetched_) * kCacheLine);
    return true;
  }

  /// As much is given back at once: the sender may wait for the room.
  static constexpr std::size_t kPublishBytes = 8 * 1024;
  static constexpr std::uint32_t kFetched = 5;                ///< slots
  static constexpr std::uint64_t kNoLap = ~std::uint64_t{0};  ///< of no head: a lap has 16 bits

  Slot* slot_ = nullptr;
  std::uint64_t lap_ = 0;
  std::uint64_t cursor_ = 0;
  std::uint64_t published_ = 0;
  std::size_t bulk_taken_ = 0;  ///< and not given back
  std::uint64_t fetched_ = 0;   ///< lines of the record that is coming
  unsigned readers_ = 0;        ///< calls of read() that have not returned
  bool broken_ = false;
  ChannelView view_;
};

}  // namespace clan::mpi

// The receiving end of a channel (channel.h): one thread at a time.
#pragma once

#include <cstring>

#include "channel.h"

namespace clan::mpi {

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
      // PAIR channel.head: sees the record
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
      // They come while Open MPI finds out whose message it is. The processor fetches the lines
      // after them by itself.
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

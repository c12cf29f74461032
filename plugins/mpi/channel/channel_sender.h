// The sending end of a channel (channel.h): one thread at a time.
#pragma once

#include <clan/detail/copy.h>

#include <cstring>

#include "bulk_places.h"
#include "channel.h"

namespace clan::mpi {

class ChannelSender {
 public:
  /// Precondition: the control's owner is this process.
  void attach(const ChannelView& view) {
    view_ = view;
    // PAIR channel.consumed: where the owner before us has left off
    produced_ = consumed_ = view.control->consumed.load(std::memory_order_acquire);
    places_ = {};
    // What the owner before us has left in the slots is not known, even of a record that it had not
    // sent yet.
    for (bool& dirty : dirty_) dirty = true;
    lap_end_ = kSlots;
    next_restart_ = kShortLap;
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
    // Checks now and then what has been taken: if that is all, the next record uses the same lines
    // again.
    if (places_.time_to_look() && consumed_ != produced_) {
      if (!refresh()) return nullptr;
      places_.looked();
    }
    if (!place(need) && !(refresh() && place(need))) return nullptr;
    reserved_offset_ = places_.reserved_offset(view_.bulk_bytes) + static_cast<std::uint32_t>(lead);
    return view_.bulk + reserved_offset_;
  }
  /// Precondition: reserve() was called for as many bytes.
  void commit(std::uint8_t tag, std::size_t bytes) {
    std::memcpy(view_.slots[produced_ % kSlots].data, &reserved_offset_, sizeof reserved_offset_);
    places_.use();
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

  bool place(std::uint64_t need) {
    return places_.place(need, view_.bulk_bytes, consumed_, produced_, !far_);
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
    places_.record_ends(produced_ + slots - 1);
    // PAIR channel.head: publishes the record to ChannelReceiver::next()
    view_.slots[index].head.store(head_of(produced_, kind, tag, bytes), std::memory_order_release);
    produced_ += slots;
    fetch_ahead(slots);
    if (restarts) {
      end_lap(next);
    } else if (next == 0) {
      lap_end_ = kSlots;
      next_restart_ = kShortLap;
    }
  }

  /// A busy sender of short records meets one line after the other in the receiver's cache. Those
  /// of a later record are asked for now; never lines that have not been read yet.
  void fetch_ahead(std::uint32_t slots) {
    const std::uint64_t ahead = produced_ + kFetchedAhead;
    if (slots > kMostFetched || ahead + slots - consumed_ >= kSlots) return;
    for (std::uint32_t i = 0; i < slots; ++i)
      prefetch_for_write(&view_.slots[(ahead + i) % kSlots]);
  }

  /// Whether the receiver keeps up, so that the lap may end behind a record of so many slots; if
  /// not, it is asked again some slots later.
  bool may_restart(std::uint32_t slots) {
    const std::uint32_t index = produced_ % kSlots + slots;
    next_restart_ = index + kShortLap / 2;
    return index < kSlots && refresh() && produced_ + slots - consumed_ <= kUnread;
  }
  // What lies behind `index` is of laps before this one, and the next lap that comes there cannot
  // know of which.
  void end_lap(std::uint32_t index) {
    lap_end_ = index + 1;
    next_restart_ = kShortLap;
    produced_ += kSlots - index;
    places_.record_ends(kSlots - 1);
  }

  static constexpr std::size_t kLong = 512;
  static constexpr std::uint64_t kFetchedAhead = 8;  ///< slots
  /// slots of a record; longer ones keep the memory busy by themselves
  static constexpr std::uint32_t kMostFetched = 4;

  ChannelView view_;
  std::uint64_t produced_ = 0;
  std::uint64_t consumed_ = 0;  ///< as last seen
  BulkPlaces places_;
  std::uint32_t reserved_offset_ = 0;
  bool broken_ = false;
  bool far_ = false;
  bool dirty_[kSlots] = {};         ///< bytes of a record lie where the slot's head would be
  std::uint32_t lap_end_ = kSlots;  ///< slots that the lap before this one has used
  std::uint32_t next_restart_ = kShortLap;  ///< index from which on the lap may end
};

}  // namespace clan::mpi

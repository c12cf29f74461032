// Where in a channel's bulk area the records of its sender lie. Positions only grow; modulo the
// area's size, a power of two, they are offsets. Local to the sender.
#pragma once

#include "channel.h"

namespace clan::mpi {

class BulkPlaces {
 public:
  /// Where the next record of that size, whole cache lines, would lie. False: there is no room.
  /// `consumed`, `produced`: slots, ever. `again`: the lines used last, where all has been taken.
  bool place(std::uint64_t need, std::uint32_t bulk_bytes, std::uint64_t consumed,
             std::uint64_t produced, bool again) {
    const std::uint64_t mask = bulk_bytes - 1;
    const auto next_lap = [mask](std::uint64_t position) { return (position + mask) & ~mask; };
    if (consumed == produced && (again || (tail_ & mask) + need > bulk_bytes)) {
      // All has been taken: begin with the lines that were used last, which are in the caches; or
      // it does not fit behind the tail, and half of the area may be all that lies before it.
      tail_ = next_lap(tail_);
      record_ends(produced - 1);
    }
    const std::uint64_t used_from = end_[(consumed - 1) % kSlots];
    std::uint64_t at = tail_;
    if ((at & mask) + need > bulk_bytes) at = next_lap(at);
    if (at + need - used_from > bulk_bytes) return false;
    reserved_at_ = at;
    reserved_end_ = at + need;
    return true;
  }
  std::uint32_t reserved_offset(std::uint32_t bulk_bytes) const {
    return static_cast<std::uint32_t>(reserved_at_ & (bulk_bytes - 1));
  }
  /// What has been placed is sent.
  void use() { tail_ = reserved_end_; }
  /// The record whose last slot this is lies before the tail.
  void record_ends(std::uint64_t slot) { end_[slot % kSlots] = tail_; }

  /// Whether it is time to see what the receiver has taken.
  bool time_to_look() const { return tail_ >= next_look_; }
  void looked() { next_look_ = tail_ + kLookEvery; }

 private:
  static constexpr std::uint64_t kLookEvery = 8 * 1024;  ///< bytes

  std::uint64_t tail_ = 0;
  std::uint64_t next_look_ = 0;
  std::uint64_t reserved_at_ = 0;
  std::uint64_t reserved_end_ = 0;
  std::uint64_t end_[kSlots] = {};  ///< tail_ behind the record that ends in each slot
};

}  // namespace clan::mpi

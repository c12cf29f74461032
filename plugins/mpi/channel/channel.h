// A channel: one rank's way to another, a ring of cache lines in the receiver's segment. Nothing of
// Open MPI here.
//
//   sender                                    receiver
//   ChannelSender::send_inline(tag, …)   ->   ChannelReceiver::next() -> a Record, in place
//   reserve(), fill in, commit(tag)      ->   the same, the bytes in the bulk area
//                                        <-   `consumed`: how many slots may be used again
//
//   slot ring    | head 8 | 56 bytes | head 8 | …
//                  a record's first slot has a head, which says that it is there, and of which lap
//   bulk area    | 64-byte aligned pieces, used in order |
//                  for records that are longer than some slots
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
// the ring full, and its owner notices the death (RemoteSegment::check()).
//
// Thread-safety: one thread at a time sends on a channel, one at a time receives; which one, the
// caller sees to.
#pragma once

#include <clan/detail/cpu.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
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
  /// lap 16, kind 8, tag 8, bytes 32 (of the whole record); from the highest bit down. A kComing
  /// has: lap 16, kind 8, first cache line in the bulk area 24, number of lines that are there 16.
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
  alignas(kCacheLine) std::atomic<std::uint64_t> owner;  ///< owner_word(); 0: nobody's
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

}  // namespace clan::mpi

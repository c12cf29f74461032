// What a ring (shm/ring.h) is made of: the word that begins a record, and how many lines what
// takes.
#pragma once

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
constexpr std::size_t kRingHeadBytes = sizeof(RingHead);
constexpr std::size_t kMinRingLines = 16;

/// What a producer walks at least before it goes back to line 0, as a part of the ring.
constexpr std::uint64_t kRingRewindPart = 4;

/// Lines a consumer that finds the ring empty may be ahead of what it has published.
constexpr std::uint64_t kRingKeepUp = 32;

/// What a long transfer is cut into, so that the consumer copies out one piece while the producer
/// copies in the next. With its head, 16 KB.
constexpr std::uint64_t kRingPiece = 16 * 1024 - kRingHeadBytes;

constexpr std::uint64_t lines_for(std::uint64_t payload) {
  return (kRingHeadBytes + payload + kCacheLine - 1) / kCacheLine;
}

/// The lines of a ring: geometry only, the memory belongs to an aperture. `lines` is a power of
/// two.
struct RingGeometry {
  std::uint64_t lines = 0;

  std::uint64_t index(std::uint64_t position) const { return position & (lines - 1); }
  /// The largest payload one record may have: a quarter of the ring, so that producer and consumer
  /// always have something to do.
  std::uint64_t max_payload() const { return lines / 4 * kCacheLine - kRingHeadBytes; }
  /// Where a producer first thinks of going back to line 0.
  std::uint64_t first_rewind() const { return lines / kRingRewindPart; }
};

}  // namespace clan::shm

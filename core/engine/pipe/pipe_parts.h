// What the files of Pipe share: types of records, sizes, the flags of its wake-ups.
#pragma once

#include <atomic>
#include <cstdint>

#include "clan/face/pipe.h"
#include "shm/ring.h"
#include "engine/pipe/pipe_waiting.h"
#include "shm/asymmetric_fence.h"

namespace clan::pipes {

constexpr std::uint8_t kBytesRecord = 1;
constexpr std::uint8_t kEndRecord = 2;
constexpr std::uint8_t kLeaveRecord = 3;

/// Of Receiver::offset: the bytes from there on have been set aside.
constexpr std::uint32_t kAside = 1u << 31;
/// The word that says that `offset` bytes of the record at `head` have been read. It says of which
/// record: a process that is killed between storing the head and storing this leaves an offset that
/// is not the front record's, and so none of it has been read.
constexpr std::uint32_t kOffset = (1u << 15) - 1;
constexpr std::uint32_t offset_word(std::uint64_t head, std::uint64_t offset) {
  return static_cast<std::uint32_t>((head & 0xffff) << 15 | offset);
}
inline std::uint64_t offset_at(std::uint64_t head, std::uint32_t word) {
  return (word & ~kAside & ~kOffset) == offset_word(head, 0) ? word & kOffset : 0;
}
static_assert(shm::kRingPiece <= kOffset);

constexpr std::uint64_t kStampBytes = sizeof(PipeStamp);  ///< in front of each record's bytes

constexpr std::uint64_t kFewestLines = 256;  ///< a limit lets through, unless the ring is small
constexpr std::uint64_t kSmallLines = 4096 / kCacheLine;

/// Looked at again under the lock, where it matters.
inline bool is_aside(const PipePage::Receiver& receiver) {
  return (receiver.offset.load(std::memory_order_relaxed) & kAside) != 0;  // relaxed: as above
}

// relaxed in both: one writer, under the lock of its side
inline void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) {
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

}  // namespace clan::pipes

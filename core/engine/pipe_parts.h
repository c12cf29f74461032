// What the files of Pipe share: types of records, sizes, and the fence of its wake-ups.
#pragma once

#include <atomic>
#include <cstdint>

#include "clan/pipe.h"
#include "engine/pipe_ring.h"
#include "shm/asymmetric_fence.h"

namespace clan::pipes {

constexpr std::uint8_t kBytesRecord = 1;
constexpr std::uint8_t kEndRecord = 2;
constexpr std::uint8_t kLeaveRecord = 3;

constexpr std::uint64_t kStampBytes = sizeof(PipeStamp);  ///< in front of each record's bytes

/// of `waiting`; no thread of a program has this id but init's
constexpr std::uint32_t kAnybody = 1;
constexpr std::uint32_t kWindowWanted = 2;  ///< of a sender's `waiting`: room in the window will do
constexpr std::uint64_t kFewestLines = 256;  ///< a limit lets through, unless the ring is small
constexpr std::uint64_t kSmallLines = 4096 / kCacheLine;

/// Between a store that the other side looks for and a load of what it stores: one of us sees the
/// other's.
inline void store_load_fence() {
  // PAIR pipe.waiting: both sides of the Dekker
  shm::AsymmetricFence::even();
}

// relaxed in both: one writer, under the lock of its side
inline void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) {
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

}  // namespace clan::pipes

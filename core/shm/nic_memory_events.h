// The shared memory of an event queue: part of a NIC's (shm/nic_memory.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "clan/detail/cpu.h"

namespace clan::shm {

constexpr std::uint32_t kEventsPerQueue = 65536;

/// An event queue: a tree of bitmaps, a bit per event. 64 words of leaf make a word of mid, 64 bits
/// of mid a bit of root: three loads find a set bit. A bitmap cannot overflow, has no holes when a
/// producer dies half-way, and no invalid contents.
struct EventQueueMemory {
  // line 0: set by producers, cleared by the consumer
  std::atomic<std::uint64_t> root;
  std::uint64_t pad0[7];
  // line 1: written by the consumer before it sleeps, and by the producers that wake it
  std::atomic<std::uint32_t> sleeping;  ///< see below; the futex word
  std::uint32_t pad1[15];
  // lines 2..: set by producers, cleared by the consumer
  std::atomic<std::uint64_t> mid[kEventsPerQueue / 64 / 64];
  std::atomic<std::uint64_t> leaf[kEventsPerQueue / 64];
};
static_assert(offsetof(EventQueueMemory, sleeping) == kCacheLine);
static_assert(offsetof(EventQueueMemory, mid) == 2 * kCacheLine);
static_assert(sizeof(EventQueueMemory) % kCacheLine == 0);
static_assert(kEventsPerQueue / 64 / 64 <= 64, "root is one word");

// EventQueueMemory::sleeping: 2 bits where the consumer sleeps, 1 being woken, 29 count sleeps.
constexpr std::uint32_t kAwake = 0;
constexpr std::uint32_t kSleepsOnFutex = 1;
constexpr std::uint32_t kSleepsOnFd = 2;
constexpr std::uint32_t kBeingWoken = 4;
constexpr std::uint32_t kOneSleep = 8;

/// kAwake, kSleepsOnFutex or kSleepsOnFd.
constexpr std::uint32_t sleep_of(std::uint32_t sleeping) { return sleeping % kBeingWoken; }
/// Where the same sleep is over.
constexpr std::uint32_t awake_after(std::uint32_t sleeping) {
  return sleeping - sleeping % kOneSleep;
}
/// To sleep so from now on. A sleep that nobody is about to end goes on.
constexpr std::uint32_t asleep_after(std::uint32_t sleeping, std::uint32_t how) {
  return sleeping % kOneSleep == how ? sleeping : awake_after(sleeping) + kOneSleep + how;
}

}  // namespace clan::shm

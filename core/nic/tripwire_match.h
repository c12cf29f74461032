// NicImage: a NIC as its deliverers see it, its own process or a peer that maps its memory: the
// simulated "hardware", which looks up the CAM behind every access and inserts events.
//
// Any thread of any attached process. Everything in `tables` is input (shm/nic_memory.h): indices
// are bounded, chains walked a bounded number of steps.
#pragma once

#include <cstdint>

#include "nic/wakeup.h"
#include "shm/asymmetric_fence.h"
#include "shm/nic_memory.h"

namespace clan::nic {

/// Wakes the owner of a NIC that sleeps on a file descriptor.
class Ringer {
 public:
  virtual void ring(std::uint32_t queue) = 0;

 protected:
  ~Ringer() = default;
};

enum class AccessKind : std::uint32_t { kWrite = shm::kTripOnWrite, kRead = shm::kTripOnRead };

struct NicImage {
  const shm::NicTables* tables = nullptr;
  shm::NicSignals* signals = nullptr;
  Ringer* ringer = nullptr;
};

/// Fires every armed tripwire that overlaps [offset, offset + length) of an aperture (CAM look-up).
void match_tripwires(const NicImage& nic, std::uint32_t aperture, std::uint64_t offset,
                     std::uint64_t length, AccessKind kind);
/// The same for a link of packets in this process, behind a full fence: Nic::arm_for_packets().
void match_for_packets(const NicImage& nic, std::uint32_t aperture, std::uint64_t offset,
                       std::uint64_t length, AccessKind kind);

/// Returns whether a tripwire of an aperture is armed. One that rests (Nic::rest()) is not.
bool is_any_armed(const NicImage& nic, std::uint32_t aperture);

/// Puts an event into a queue and wakes its consumer if that sleeps. Ignores numbers out of range.
void post_event(const NicImage& nic, std::uint32_t queue, std::uint32_t event);

}  // namespace clan::nic

// How a Tlb (clan/tlb.h) is made, what it counts, and what it answers: plain data.
#pragma once

#include <cstddef>
#include <cstdint>

namespace clan {

/// Neither level of a Tlb may have more entries.
inline constexpr std::size_t kMostTlbEntries = std::size_t{1} << 24;

struct TlbConfig {
  std::size_t primary_entries = 1024;  ///< a power of two, up to kMostTlbEntries
  std::size_t victim_entries = 16;
  std::size_t page_size = 4096;  ///< a power of two; the Pinner's
  /// Entries altogether, with what transfers hold beyond the two levels. 0: room for one more
  /// primary. When all are in use, requests are deferred.
  std::size_t max_entries = 0;
  /// Tell first touches from repeated misses. Allocates for each page ever touched: for simulation.
  bool track_compulsory = false;
};

struct TlbStats {
  std::uint64_t hits = 0;  ///< primary_hits + victim_hits
  std::uint64_t primary_hits = 0;
  std::uint64_t victim_hits = 0;
  std::uint64_t misses = 0;             ///< look-ups that found no entry
  std::uint64_t fills = 0;              ///< misses that made an entry
  std::uint64_t compulsory_misses = 0;  ///< fills for a page never seen before (track_compulsory)
  std::uint64_t upgrades = 0;           ///< read-only entries that became writable
  std::uint64_t evictions = 0;          ///< entries that fell out for want of room
  std::uint64_t pins = 0;               ///< pages
  std::uint64_t unpins = 0;             ///< pages, unpinned or forgotten
  std::uint64_t deferred = 0;           ///< requests put off, whatever the reason
  std::uint64_t full = 0;               ///< of these: because every entry was in use
  std::uint64_t faults = 0;             ///< requests refused with EFAULT
  std::uint64_t over_limit = 0;         ///< times the pinner reached the limit on locked memory
  std::uint64_t unpinned_fills = 0;     ///< entries made without a pin because of that
  std::uint64_t transient_fills = 0;    ///< entries that had to go with their transfer
  std::uint64_t invalidations = 0;      ///< entries removed by invalidate()
  std::uint64_t pinned = 0;             ///< pages pinned now
  std::uint64_t pinned_high_water = 0;
  std::uint64_t entries = 0;  ///< entries now, in both levels

  /// Misses that a larger TLB would have avoided (track_compulsory).
  std::uint64_t non_compulsory_misses() const { return fills - compulsory_misses; }
};

enum class Lookup : std::uint8_t { kHit, kMissFilled, kDeferred, kFault };

/// What became of one page.
struct Translation {
  Lookup lookup = Lookup::kFault;
  bool writable = false;
  bool pinned = false;
  int error = 0;                ///< EFAULT with kFault
  std::uint64_t page_base = 0;  ///< the page, for the NIC
  std::uint64_t address = 0;    ///< the byte asked for, for the NIC
  bool ok() const { return lookup == Lookup::kHit || lookup == Lookup::kMissFilled; }
};

/// What became of a range.
enum class RangeOutcome : std::uint8_t { kReady, kDeferred, kFault };
struct RangeResult {
  RangeOutcome outcome = RangeOutcome::kReady;
  int error = 0;            ///< kFault: EFAULT, or EMSGSIZE when the range exceeds the TLB
  std::uint64_t vaddr = 0;  ///< first byte of the page that was in the way
};

}  // namespace clan

// The shared memory of one simulated NIC: what its peers see of it.
//
// A NIC has two segments, because its peers may change one and only read the other:
//
//   NicTables   written by the owner, mapped read-only by peers (the memfd is sealed against
//               future writable mappings once the owner has mapped it)
//     page 0    header
//     page 1..  aperture table    kMaxApertures x 64 B
//     ...       tripwire table    kMaxTripwires x 64 B   (the CAM of the paper)
//
//   NicSignals  written by the owner and its peers of one user id
//     state bitmap of the tripwires, one signal line per tripwire, the event queues
//
// Whatever a peer writes into NicSignals is harmless: every bit pattern is a valid state, events
// are hints that the owner checks, there are no indices or pointers. An owner's NicTables are input
// to its peers, which mask and bound every field. Both are sparse: what is unused costs nothing.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/event_count.h"
#include "base/mapping.h"
#include "clan/detail/cpu.h"
#include "shm/nic_memory_events.h"

namespace clan::shm {

constexpr std::uint64_t kNicMagic = 0x434c414e4e494331;  // "CLANNIC1"
/// Raised by any change to a shared layout or to the control messages. Versions refuse each other.
constexpr std::uint32_t kLayoutVersion = 8;

constexpr std::uint32_t kMaxApertures = 65536;
constexpr std::uint32_t kMaxTripwires = 65536;
constexpr std::uint32_t kMaxEventQueues = 4096;
constexpr std::uint32_t kNoTripwire = 0xffffffff;
constexpr std::uint32_t kNoEvent = 0xffffffff;

/// The first line of NicTables; constant after creation.
struct NicHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t flags;  ///< kNicFences
  std::uint64_t tables_bytes;
  std::uint64_t signals_bytes;
  std::uint64_t node;
  std::uint32_t owner_pid;  ///< informational: process ids mean nothing across containers
  std::uint32_t owner_uid;
  /// where cma_probe_value lies in the owner, to try process_vm_readv on
  std::uint64_t cma_probe_address;
  std::uint64_t cma_probe_value;
};
static_assert(sizeof(NicHeader) == kCacheLine && std::is_standard_layout_v<NicHeader>);

/// The owner runs AsymmetricFence::heavy() by membarrier, so registered senders need no fence.
constexpr std::uint32_t kNicFences = 1;

/// One exported region. One line, written by the owner.
struct ApertureEntry {
  std::atomic<std::uint64_t> generation;  ///< odd = live; odd generations are what cookies carry
  /// bit c: an armed tripwire overlaps chunk c (see chunk_mask)
  std::atomic<std::uint64_t> armed;
  std::atomic<std::uint64_t> length;
  std::atomic<std::uint64_t> base;  ///< address in the owner, for DMA
  /// id of the CLAN memory it lies in, 0 = the caller's own
  std::atomic<std::uint64_t> memory;
  std::atomic<std::uint64_t> memory_offset;  ///< where in that memory
  std::atomic<std::uint64_t> key_image;      ///< siphash of the cookie's key
  std::atomic<std::uint32_t> rights;
  std::atomic<std::uint32_t> first_tripwire;  ///< chain through TripwireEntry::next
};
static_assert(sizeof(ApertureEntry) == kCacheLine && std::is_standard_layout_v<ApertureEntry>);

/// One entry of the CAM. One line, written by the owner.
struct TripwireEntry {
  std::atomic<std::uint64_t> start;  ///< in the aperture
  std::atomic<std::uint64_t> end;
  std::atomic<std::uint32_t> aperture;
  std::atomic<std::uint32_t> next;
  std::atomic<std::uint32_t> flags;  ///< kTripOn...
  std::atomic<std::uint32_t> queue;  ///< event queue, kMaxEventQueues = none
  std::atomic<std::uint32_t> event;
  std::uint32_t pad[7];
};
static_assert(sizeof(TripwireEntry) == kCacheLine && std::is_standard_layout_v<TripwireEntry>);

constexpr std::uint32_t kTripOnWrite = 1;
constexpr std::uint32_t kTripOnRead = 2;
constexpr std::uint32_t kTripPersistent = 4;

/// The part of a tripwire that firing changes. One line.
struct TripwireSignal {
  std::atomic<std::uint32_t> armed;  ///< see below; by the owner, and the firer of a single shot
  EventCount fired;                  ///< counts firings; its sleepers are threads of the owner
  std::uint32_t pad[13];
};
static_assert(sizeof(TripwireSignal) == kCacheLine);

// TripwireSignal::armed: 1 bit that it is armed, 31 bits that count the armings.
constexpr bool is_armed(std::uint32_t armed) { return armed % 2 != 0; }
constexpr std::uint32_t disarmed_after(std::uint32_t armed) { return armed - armed % 2; }
/// From now on. A sender that fires it for an arming before this one does not end this one.
constexpr std::uint32_t armed_after(std::uint32_t armed) { return disarmed_after(armed) + 3; }

/// What a peer says of its own copies (DMA) of the owner's memory: one line, written by that peer,
/// a word for each copying thread. Odd = under way: revocation waits for it.
constexpr std::uint32_t kDmaLanes = 8;
struct DmaActivity {
  std::atomic<std::uint64_t> epoch[kDmaLanes];
};
static_assert(sizeof(DmaActivity) == kCacheLine);
constexpr std::uint32_t kMaxPeers = 4096;

/// A large copy that its initiator wants help with: one end pushes chunks, the other pulls chunks.
/// One line per peer, in the helper's NIC. The initiator fills the fields, then starts `claim`;
/// each side claims, copies and counts chunks in `done`. No other job starts before all are done.
struct CopyJob {
  /// sequence << 32 | chunks << 16 | next chunk; written by both
  std::atomic<std::uint64_t> claim;
  std::atomic<std::uint32_t> done;  ///< chunks copied; written by both
  std::atomic<std::uint32_t> err;   ///< the helper's first error, 0 = none
  // written by the initiator before `claim`
  std::atomic<std::uint64_t> address;  ///< in the initiator
  std::atomic<std::uint64_t> offset;   ///< in the aperture
  std::atomic<std::uint64_t> length;
  std::atomic<std::uint32_t> aperture;
  std::atomic<std::uint32_t> generation;
  std::atomic<std::uint32_t> op;  ///< clan::RdmaOp as the initiator sees it
  std::uint32_t pad[3];
};
static_assert(sizeof(CopyJob) == kCacheLine);
/// Bytes of a chunk: a quarter of the copy, for both sides' sake, within limits that keep the
/// system call small beside the copying. A multiple of the page size.
constexpr std::uint64_t kMaxCopyChunks = 0xffff;
constexpr std::uint64_t copy_chunk_bytes(std::uint64_t length) {
  const std::uint64_t quarter = round_to_pages(length / 4);
  return quarter < 32 * 1024 ? 32 * 1024 : quarter > 256 * 1024 ? 256 * 1024 : quarter;
}

struct NicTables {
  NicHeader header;
  std::byte pad[kPageSize - sizeof(NicHeader)];
  ApertureEntry apertures[kMaxApertures];
  TripwireEntry tripwires[kMaxTripwires];
};
static_assert(offsetof(NicTables, apertures) == kPageSize);
static_assert(std::is_standard_layout_v<NicTables> && std::is_trivially_destructible_v<NicTables>);

struct NicSignals {
  std::atomic<std::uint64_t> tripwire_state[kMaxTripwires / 64];
  TripwireSignal tripwires[kMaxTripwires];
  std::atomic<std::uint64_t> help_wanted;  ///< bit slot % 64: check the jobs of these slots
  std::uint64_t pad[7];
  DmaActivity activity[kMaxPeers];
  CopyJob jobs[kMaxPeers];
  EventQueueMemory queues[kMaxEventQueues];
};
static_assert(std::is_standard_layout_v<NicSignals> &&
              std::is_trivially_destructible_v<NicSignals>);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

constexpr std::size_t kTablesBytes = round_to_pages(sizeof(NicTables));
constexpr std::size_t kSignalsBytes = round_to_pages(sizeof(NicSignals));

/// The bits of ApertureEntry::armed for a range: 64 chunks of a power of two each. 0: empty.
constexpr std::uint64_t chunk_mask(std::uint64_t aperture_length, std::uint64_t offset,
                                   std::uint64_t length) {
  if (length == 0 || offset >= aperture_length) return 0;
  const int bits = std::bit_width(aperture_length - 1);
  const int shift = bits > 6 ? bits - 6 : 0;
  std::uint64_t last =
      offset +
      (length - 1 < aperture_length - 1 - offset ? length - 1 : aperture_length - 1 - offset);
  std::uint64_t from = offset >> shift;
  std::uint64_t to = last >> shift;
  std::uint64_t upto = to >= 63 ? ~std::uint64_t{0} : (std::uint64_t{1} << (to + 1)) - 1;
  return upto & ~((std::uint64_t{1} << from) - 1);
}

}  // namespace clan::shm

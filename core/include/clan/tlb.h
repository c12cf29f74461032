// Tlb: the translation look-aside buffer of a NIC (U-Net/MM, sections 4 and 5).
//
// RDMA names arbitrary virtual addresses. The NIC translates <address space, page> here, and pins
// each page that has an entry: the TLB's size bounds pinned memory. Two levels:
//
//     <asid, page> --hash--> primary, direct-mapped        1024 entries
//                             |  evicted      ^ hit: swap
//                             v               |
//                            victim cache, associative       16 entries, first in first out
//                             |  oldest that no transfer uses
//                             v
//                            unpinned
//
// An entry in use is never evicted: the victim cache then grows, and shrinks afterwards.
//
// Not thread-safe: the NIC driver holds its lock, also when a TlbUse ends. After create() nothing
// here allocates or blocks, unless the Pinner does or `track_compulsory` is set: the driver may
// serve unmap events of threads that hold malloc's locks.
#pragma once

#include <clan/detail/export.h>
#include <clan/pinner.h>
#include <clan/result.h>
#include <clan/tlb_types.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace clan {

class TlbUse;

class CLAN_EXPORT Tlb {
 public:
  /// EINVAL for sizes that make no sense. The pinner must outlive the Tlb.
  static Result<std::unique_ptr<Tlb>> create(const TlbConfig& config, Pinner& pinner);

  /// Unpins everything. Precondition: no TlbUse is left.
  ~Tlb();
  Tlb(const Tlb&) = delete;
  Tlb& operator=(const Tlb&) = delete;

  /// Translates one address, pinning its page if need be. The answer holds until the next call.
  [[nodiscard]] Translation translate(AddressSpaceId asid, std::uint64_t vaddr, PageAccess access);

  /// Translates [vaddr, vaddr + length) and keeps its pages until the TlbUse ends. All or nothing.
  [[nodiscard]] TlbUse acquire(AddressSpaceId asid, std::uint64_t vaddr, std::uint64_t length,
                               PageAccess access);

  /// Whether the pages are still mapped where they were.
  enum class Mapping : std::uint8_t { kGone, kKept };

  /// The mapping of a range has changed: no later look-up sees its entries. Those in use leave with
  /// their transfer. Returns how many went.
  std::size_t invalidate(AddressSpaceId asid, std::uint64_t vaddr, std::uint64_t length,
                         Mapping mapping = Mapping::kGone);

  /// An endpoint closed: all entries of its address space go, and are unpinned.
  std::size_t invalidate(AddressSpaceId asid);

  const TlbConfig& config() const { return config_; }
  const TlbStats& stats() const { return stats_; }

  /// The longest range acquire() takes, in pages.
  std::size_t max_range_pages() const { return config_.primary_entries; }

  /// Whether a page has an entry. Changes and counts nothing.
  bool contains(AddressSpaceId asid, std::uint64_t vaddr) const;

  /// The primary slot of an address, for studies of conflicts.
  std::size_t slot_of(AddressSpaceId asid, std::uint64_t vaddr) const;

 private:
  friend class TlbUse;
  using Index = std::uint32_t;
  static constexpr Index kNone = ~Index{0};
  enum class Place : std::uint8_t { kFree, kPrimary, kVictim, kDoomed };
  using List = std::list<Index>;
  // Entries never move: the primary holds their indices, so that a swap moves nothing a transfer
  // uses. An entry is on exactly one list, and to move it to another allocates nothing.
  struct Entry {
    std::uint64_t page = 0;
    std::uint64_t base = 0;
    std::uint64_t token = 0;
    AddressSpaceId asid = 0;
    std::uint32_t uses = 0;
    List::iterator at;
    Place place = Place::kFree;
    bool writable = false;
    bool pinned = false;
    bool transient = false;
    std::uint64_t made_at = 0;    // [made_at, doomed_at): the uses that hold this entry
    std::uint64_t doomed_at = 0;  // while place is kDoomed
  };

  Tlb(const TlbConfig& config, Pinner& pinner);

  std::size_t slot(AddressSpaceId asid, std::uint64_t page) const;
  Index find(AddressSpaceId asid, std::uint64_t page) const;
  Index find_in_victims(AddressSpaceId asid, std::uint64_t page) const;
  Index find_of_use(AddressSpaceId asid, std::uint64_t page, std::uint64_t stamp) const;
  Index look_up(AddressSpaceId asid, std::uint64_t page);
  void move(List& from, List& to, Index index);
  void trim_victims();
  bool evict_oldest_idle_victim();
  std::size_t make_room(std::size_t pages);
  Index take_free();
  void insert(Index index);
  void unlink(Index index);
  void unpin(Entry& entry, Mapping mapping);
  void drop(Index index, Mapping mapping);
  void doom_or_drop(Index index, Mapping mapping);
  void evict(Index index);
  void count_pins(std::size_t pages);
  void count_first_touch(AddressSpaceId asid, std::uint64_t page);
  PinOutcome pin_with_retry(AddressSpaceId asid, std::uint64_t page, PageAccess access,
                            std::span<PinnedPage> out, std::size_t& bad);
  RangeResult fill(AddressSpaceId asid, std::uint64_t page, std::size_t pages, PageAccess access,
                   std::size_t& filled);
  RangeResult upgrade(Index& index);
  RangeResult deferred_at(std::uint64_t page);
  RangeResult fault_at(std::uint64_t page, int error);
  RangeResult hold(AddressSpaceId asid, std::uint64_t first, std::uint64_t pages, PageAccess access,
                   std::size_t& held);
  void let_go(AddressSpaceId asid, std::uint64_t first, std::size_t pages, std::uint64_t stamp);

  TlbConfig config_;
  Pinner& pinner_;
  unsigned page_shift_ = 12;
  unsigned slot_bits_ = 10;
  std::vector<Index> primary_;
  std::vector<Entry> entries_;
  List others_;  // in the primary, or on their way from one list to another
  List victims_;
  List doomed_;  // invalidated while in use
  List free_;
  std::size_t clock_ = 0;   // where make_room() goes on in the primary
  std::uint64_t now_ = 0;   // counts fills, dooms, uses: tells successive entries of a page apart
  std::uint64_t uses_ = 0;  // TlbUse objects alive
  TlbStats stats_;
  std::unordered_map<AddressSpaceId, std::unordered_set<std::uint64_t>> touched_;
};

/// The pages of one transfer: their entries stay as they were until it ends, even when invalidated
/// (process_vm_readv may read an unmapped page, a load may not). Ends under the Tlb's lock.
class CLAN_EXPORT TlbUse {
 public:
  TlbUse() = default;
  TlbUse(TlbUse&& other) noexcept { *this = std::move(other); }
  TlbUse& operator=(TlbUse&& other) noexcept;
  TlbUse(const TlbUse&) = delete;
  TlbUse& operator=(const TlbUse&) = delete;
  ~TlbUse() { release(); }

  bool ready() const { return result_.outcome == RangeOutcome::kReady; }
  RangeOutcome outcome() const { return result_.outcome; }
  int error() const { return result_.error; }
  /// Where it stopped, when it isn't ready.
  std::uint64_t stopped_at() const { return result_.vaddr; }

  /// The NIC's address of a byte of the range. Precondition: ready() and vaddr within the range.
  std::uint64_t address(std::uint64_t vaddr) const;

  void release();

 private:
  friend class Tlb;
  Tlb* tlb_ = nullptr;
  AddressSpaceId asid_ = 0;
  std::uint64_t vaddr_ = 0;
  std::uint64_t length_ = 0;
  std::uint64_t stamp_ = 0;
  RangeResult result_;
};

}  // namespace clan

// Pinner: the memory management that a Tlb (clan/tlb.h) works with: the kernel's side.
#pragma once

#include <clan/detail/export.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace clan {

/// Which address space a virtual address belongs to: a small number given out by the NIC.
using AddressSpaceId = std::uint32_t;

/// What the NIC is going to do with a page: read it (send) or write it (receive).
enum class PageAccess : std::uint8_t { kRead, kWrite };

/// A page as a Pinner hands it over.
struct PinnedPage {
  std::uint64_t base = 0;   ///< where the NIC finds the page
  std::uint64_t token = 0;  ///< the pinner's own, given back with unpin()
  bool writable = false;
  /// Nobody would report an unmap of this page, so the entry must not outlive its transfer.
  bool transient = false;
};

enum class PinOutcome : std::uint8_t {
  kPinned,       ///< all pages are pinned
  kNotResident,  ///< page-in started, nothing pinned: serve others and come back
  kFault,        ///< not mapped, or not with these rights; nothing pinned
  kOverLimit,    ///< could be used but not pinned: the limit on locked memory is reached
};

struct PinResult {
  PinOutcome outcome = PinOutcome::kFault;
  std::size_t index = 0;  ///< which page of the run, for kNotResident and kFault
};

/// The memory management a Tlb works with. pin() takes a run of pages or none of them.
class CLAN_EXPORT Pinner {
 public:
  virtual ~Pinner();

  /// Pins pages [page, page + out.size()). Fills `out` on kPinned and kOverLimit. Pins count: one
  /// unpin() or forget() undoes each.
  virtual PinResult pin(AddressSpaceId asid, std::uint64_t page, PageAccess access,
                        std::span<PinnedPage> out) = 0;

  /// Undoes one pin of a page that is still mapped where it was.
  virtual void unpin(AddressSpaceId asid, std::uint64_t page, std::uint64_t token) = 0;

  /// Undoes one pin of a page whose mapping is gone. Must not touch the address: it may be reused.
  virtual void forget(AddressSpaceId asid, std::uint64_t page, std::uint64_t token) = 0;
};

}  // namespace clan

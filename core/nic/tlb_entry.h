// What the parts of Tlb share: its entries.
#pragma once

#include <clan/tlb.h>

namespace clan {

// Entries never move: the primary holds their indices, so that a swap moves nothing a transfer
// uses. An entry is on exactly one list, and to move it to another allocates nothing.
struct Tlb::Entry {
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

}  // namespace clan

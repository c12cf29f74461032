#include <clan/tlb.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <new>

namespace clan {
namespace {

constexpr std::size_t kMostEntries = kMostTlbEntries;
constexpr std::uint32_t kGoldenRatio = 0x9E3779B9u;

bool is_power_of_two(std::size_t n, std::size_t most) {
  return std::has_single_bit(n) && n <= most;
}

}  // namespace

Pinner::~Pinner() = default;

Result<std::unique_ptr<Tlb>> Tlb::create(const TlbConfig& config, Pinner& pinner) {
  TlbConfig checked = config;
  if (!is_power_of_two(config.primary_entries, kMostEntries) ||
      config.victim_entries > kMostEntries || config.max_entries > 4 * kMostEntries ||
      !is_power_of_two(config.page_size, std::size_t{1} << 30) || config.page_size < 64) {
    return Error{EINVAL, "tlb: sizes must be powers of two within bounds"};
  }
  std::size_t least = config.primary_entries + config.victim_entries + 1;
  if (config.max_entries == 0) {
    checked.max_entries = config.primary_entries + least;
  } else if (config.max_entries < least) {
    return Error{EINVAL, "tlb: max_entries is less than the two levels need"};
  }
  try {
    return std::unique_ptr<Tlb>(new Tlb(checked, pinner));
  } catch (const std::bad_alloc&) {
    return Error{ENOMEM, "tlb: entries"};
  }
}

Tlb::Tlb(const TlbConfig& config, Pinner& pinner)
    : config_(config),
      pinner_(pinner),
      page_shift_(static_cast<unsigned>(std::countr_zero(config.page_size))),
      slot_bits_(static_cast<unsigned>(std::countr_zero(config.primary_entries))),
      primary_(config.primary_entries, kNone),
      entries_(config.max_entries) {
  for (Index i = 0; i < entries_.size(); ++i) entries_[i].at = free_.insert(free_.end(), i);
}

Tlb::~Tlb() {
  assert(uses_ == 0);
  for (Entry& entry : entries_) {
    if (entry.pinned) pinner_.unpin(entry.asid, entry.page, entry.token);
  }
}

// ---- look-up ----

// Neighbouring pages get neighbouring slots, so that a buffer never conflicts with itself.
// Multiples of the golden ratio keep similar address spaces as far apart as can be: 8 share 1024
// slots with 92 consecutive pages each undisturbed.
std::size_t Tlb::slot(AddressSpaceId asid, std::uint64_t page) const {
  std::uint64_t start = std::uint64_t{asid * kGoldenRatio} >> (32 - slot_bits_);
  return static_cast<std::size_t>((page + start) & (config_.primary_entries - 1));
}

std::size_t Tlb::slot_of(AddressSpaceId asid, std::uint64_t vaddr) const {
  return slot(asid, vaddr >> page_shift_);
}

Tlb::Index Tlb::find_in_victims(AddressSpaceId asid, std::uint64_t page) const {
  for (const Index i : victims_) {
    if (entries_[i].page == page && entries_[i].asid == asid) return i;
  }
  return kNone;
}

Tlb::Index Tlb::find(AddressSpaceId asid, std::uint64_t page) const {
  Index i = primary_[slot(asid, page)];
  if (i != kNone && entries_[i].page == page && entries_[i].asid == asid) return i;
  return find_in_victims(asid, page);
}

bool Tlb::contains(AddressSpaceId asid, std::uint64_t vaddr) const {
  return find(asid, vaddr >> page_shift_) != kNone;
}

// The look-up that counts, and swaps a victim back in.
Tlb::Index Tlb::look_up(AddressSpaceId asid, std::uint64_t page) {
  Index i = primary_[slot(asid, page)];
  if (i != kNone && entries_[i].page == page && entries_[i].asid == asid) [[likely]] {
    ++stats_.primary_hits;
    ++stats_.hits;
    return i;
  }
  i = find_in_victims(asid, page);
  if (i == kNone) {
    ++stats_.misses;
    return kNone;
  }
  ++stats_.victim_hits;
  ++stats_.hits;
  move(victims_, others_, i);
  insert(i);
  return i;
}

// ---- the two levels ----

// To its end.
void Tlb::move(List& from, List& to, Index index) { to.splice(to.end(), from, entries_[index].at); }

void Tlb::insert(Index index) {
  Entry& entry = entries_[index];
  Index& home = primary_[slot(entry.asid, entry.page)];
  Index displaced = std::exchange(home, index);
  entry.place = Place::kPrimary;
  if (displaced != kNone) {
    entries_[displaced].place = Place::kVictim;
    move(others_, victims_, displaced);
    trim_victims();
  }
}

bool Tlb::evict_oldest_idle_victim() {
  for (const Index i : victims_) {
    if (entries_[i].uses == 0) {
      evict(i);
      return true;
    }
  }
  return false;
}

void Tlb::trim_victims() {
  while (victims_.size() > config_.victim_entries && evict_oldest_idle_victim()) {
  }
}

void Tlb::evict(Index index) {
  ++stats_.evictions;
  unlink(index);
  drop(index, Mapping::kKept);
}

// Gives up the pins of `pages` idle entries, oldest victims first. Returns how many it found.
std::size_t Tlb::make_room(std::size_t pages) {
  std::size_t given = 0;
  for (auto at = victims_.begin(); at != victims_.end() && given < pages;) {
    const Index i = *at++;
    if (entries_[i].uses == 0 && entries_[i].pinned) {
      evict(i);
      ++given;
    }
  }
  for (std::size_t looked = 0; looked < primary_.size() && given < pages; ++looked) {
    Index i = primary_[clock_];
    clock_ = (clock_ + 1) & (primary_.size() - 1);
    if (i != kNone && entries_[i].uses == 0 && entries_[i].pinned) {
      evict(i);
      ++given;
    }
  }
  return given;
}

Tlb::Index Tlb::take_free() {
  if (free_.empty() && !evict_oldest_idle_victim()) return kNone;
  const Index index = free_.front();
  const List::iterator at = entries_[index].at;
  entries_[index] = Entry{};
  entries_[index].at = at;
  move(free_, others_, index);
  return index;
}

void Tlb::unlink(Index index) {
  Entry& entry = entries_[index];
  if (entry.place == Place::kPrimary) {
    primary_[slot(entry.asid, entry.page)] = kNone;
  } else if (entry.place == Place::kVictim) {
    move(victims_, others_, index);
  } else if (entry.place == Place::kDoomed) {
    move(doomed_, others_, index);
  }
  if (entry.place != Place::kDoomed) --stats_.entries;
}

void Tlb::unpin(Entry& entry, Mapping mapping) {
  if (!std::exchange(entry.pinned, false)) return;
  ++stats_.unpins;
  --stats_.pinned;
  if (mapping == Mapping::kGone) {
    pinner_.forget(entry.asid, entry.page, entry.token);
  } else {
    pinner_.unpin(entry.asid, entry.page, entry.token);
  }
}

// Ends an entry that nothing finds any more.
void Tlb::drop(Index index, Mapping mapping) {
  unpin(entries_[index], mapping);
  entries_[index].place = Place::kFree;
  move(others_, free_, index);
}

// Takes an entry out of sight; while a transfer uses it, it waits among the doomed.
void Tlb::doom_or_drop(Index index, Mapping mapping) {
  Entry& entry = entries_[index];
  unlink(index);
  if (entry.uses == 0) return drop(index, mapping);
  entry.place = Place::kDoomed;
  entry.doomed_at = ++now_;
  move(others_, doomed_, index);
  if (mapping == Mapping::kGone) unpin(entry, mapping);
}

// ---- misses ----

void Tlb::count_pins(std::size_t pages) {
  stats_.pins += pages;
  stats_.pinned += pages;
  stats_.pinned_high_water = std::max(stats_.pinned_high_water, stats_.pinned);
}

void Tlb::count_first_touch(AddressSpaceId asid, std::uint64_t page) {
  if (config_.track_compulsory && touched_[asid].insert(page).second) ++stats_.compulsory_misses;
}

Translation Tlb::translate(AddressSpaceId asid, std::uint64_t vaddr, PageAccess access) {
  std::uint64_t page = vaddr >> page_shift_;
  std::uint64_t offset = vaddr & (config_.page_size - 1);
  Index index = look_up(asid, page);
  bool hit = index != kNone;
  if (!hit || (access == PageAccess::kWrite && !entries_[index].writable)) [[unlikely]] {
    std::size_t filled = 0;
    RangeResult result = hit ? upgrade(index) : fill(asid, page, 1, access, filled);
    if (result.outcome != RangeOutcome::kReady) {
      Translation none;
      none.lookup = result.outcome == RangeOutcome::kFault ? Lookup::kFault : Lookup::kDeferred;
      none.error = result.error;
      return none;
    }
    if (!hit) index = find(asid, page);
  }
  Entry& entry = entries_[index];
  Translation found{hit ? Lookup::kHit : Lookup::kMissFilled,
                    entry.writable,
                    entry.pinned,
                    0,
                    entry.base,
                    entry.base + offset};
  if (hit && entry.transient) ++entry.uses;
  if (!hit || entry.transient) let_go(asid, page, 1, now_);
  return found;
}

TlbUse Tlb::acquire(AddressSpaceId asid, std::uint64_t vaddr, std::uint64_t length,
                    PageAccess access) {
  TlbUse use;
  if (length == 0) return use;
  std::uint64_t first = vaddr >> page_shift_;
  std::uint64_t last = (vaddr + (length - 1)) >> page_shift_;
  if (vaddr + (length - 1) < vaddr) {
    use.result_ = fault_at(first, EFAULT);
  } else if (last - first >= max_range_pages()) {
    use.result_ = fault_at(first, EMSGSIZE);
  } else {
    std::size_t held = 0;
    use.result_ = hold(asid, first, last - first + 1, access, held);
    std::uint64_t stamp = ++now_;
    if (!use.ready()) {
      let_go(asid, first, held, stamp);
      return use;
    }
    use.tlb_ = this;
    use.asid_ = asid;
    use.vaddr_ = vaddr;
    use.length_ = length;
    use.stamp_ = stamp;
    ++uses_;
  }
  return use;
}

// ---- invalidation ----

std::size_t Tlb::invalidate(AddressSpaceId asid, std::uint64_t vaddr, std::uint64_t length,
                            Mapping mapping) {
  if (length == 0) return 0;
  std::uint64_t end = vaddr + (length - 1);
  if (end < vaddr) end = ~std::uint64_t{0};
  std::uint64_t first = vaddr >> page_shift_;
  std::uint64_t last = end >> page_shift_;
  std::size_t gone = 0;
  if (last - first < stats_.entries) {
    for (std::uint64_t page = first; page <= last; ++page) {
      Index index = find(asid, page);
      if (index == kNone) continue;
      doom_or_drop(index, mapping);
      ++gone;
    }
  } else {
    for (Index i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      if (entry.place != Place::kPrimary && entry.place != Place::kVictim) continue;
      if (entry.asid != asid || entry.page < first || entry.page > last) continue;
      doom_or_drop(i, mapping);
      ++gone;
    }
  }
  // Entries doomed earlier, for a mapping that still was: the page's pin has gone with the mapping.
  for (const Index i : doomed_) {
    Entry& entry = entries_[i];
    if (mapping != Mapping::kGone) break;
    if (entry.asid != asid || entry.page < first || entry.page > last) continue;
    unpin(entry, mapping);
  }
  trim_victims();
  stats_.invalidations += gone;
  return gone;
}

std::size_t Tlb::invalidate(AddressSpaceId asid) {
  return invalidate(asid, 0, ~std::uint64_t{0}, Mapping::kKept);
}

}  // namespace clan

// Tlb: ranges of pages, pinned as few calls as possible, held by a use and let go.
#include <clan/tlb.h>

#include <algorithm>
#include <array>
#include <cassert>

namespace clan {
namespace {

constexpr std::size_t kLongestRun = 64;  // pages pinned by one call

}  // namespace

RangeResult Tlb::deferred_at(std::uint64_t page) {
  ++stats_.deferred;
  return {RangeOutcome::kDeferred, 0, page << page_shift_};
}

RangeResult Tlb::fault_at(std::uint64_t page, int error) {
  ++stats_.faults;
  return {RangeOutcome::kFault, error, page << page_shift_};
}

// The limit on locked memory is a matter of capacity: give up as much as we ask for and try again.
PinOutcome Tlb::pin_with_retry(AddressSpaceId asid, std::uint64_t page, PageAccess access,
                               std::span<PinnedPage> out, std::size_t& bad) {
  PinResult result = pinner_.pin(asid, page, access, out);
  if (result.outcome == PinOutcome::kOverLimit) {
    ++stats_.over_limit;
    if (make_room(out.size()) != 0) result = pinner_.pin(asid, page, access, out);
  }
  bad = std::min(result.index, out.size() - 1);
  return result.outcome;
}

// Makes entries for pages that have none, each with one use, so that the run can't evict itself.
RangeResult Tlb::fill(AddressSpaceId asid, std::uint64_t page, std::size_t pages, PageAccess access,
                      std::size_t& filled) {
  std::array<PinnedPage, kLongestRun> storage;
  std::span<PinnedPage> run(storage.data(), pages);
  std::size_t bad = 0;
  filled = 0;
  PinOutcome outcome = pin_with_retry(asid, page, access, run, bad);
  if (outcome == PinOutcome::kNotResident) return deferred_at(page + bad);
  if (outcome == PinOutcome::kFault) return fault_at(page + bad, EFAULT);
  bool pinned = outcome == PinOutcome::kPinned;
  if (pinned) count_pins(pages);
  for (; filled < pages; ++filled) {
    Index index = take_free();
    if (index == kNone) break;
    const PinnedPage& from = run[filled];
    Entry& entry = entries_[index];
    entry.page = page + filled;
    entry.asid = asid;
    entry.base = from.base;
    entry.token = from.token;
    entry.writable = from.writable;
    entry.transient = from.transient;
    entry.pinned = pinned;
    entry.uses = 1;
    entry.made_at = ++now_;
    ++stats_.entries;
    ++stats_.fills;
    stats_.unpinned_fills += !pinned;
    stats_.transient_fills += from.transient;
    count_first_touch(asid, page + filled);
    insert(index);
  }
  if (filled == pages) return {};
  for (std::size_t i = filled; pinned && i < pages; ++i) {
    pinner_.unpin(asid, page + i, run[i].token);
    ++stats_.unpins;
    --stats_.pinned;
  }
  ++stats_.full;
  return deferred_at(page + filled);
}

// A write to a page translated for reading. Transfers keep the old frame after copy-on-write.
RangeResult Tlb::upgrade(Index& index) {
  Entry& entry = entries_[index];
  PinnedPage fresh;
  PinResult result = pinner_.pin(entry.asid, entry.page, PageAccess::kWrite, {&fresh, 1});
  if (result.outcome == PinOutcome::kNotResident) return deferred_at(entry.page);
  if (result.outcome == PinOutcome::kFault) return fault_at(entry.page, EFAULT);
  bool pinned = result.outcome == PinOutcome::kPinned;
  if (!pinned) ++stats_.over_limit;
  if (entry.uses != 0 && fresh.base != entry.base) {
    Index successor = take_free();
    if (successor == kNone) {
      if (pinned) pinner_.unpin(entry.asid, entry.page, fresh.token);
      ++stats_.full;
      return deferred_at(entry.page);
    }
    entries_[successor].page = entry.page;
    entries_[successor].asid = entry.asid;
    entries_[successor].made_at = now_ + 2;  // after the doom below
    doom_or_drop(index, Mapping::kKept);
    ++now_;
    ++stats_.entries;
    insert(successor);
    index = successor;
  }
  Entry& now = entries_[index];
  if (pinned) {
    count_pins(1);
    unpin(now, Mapping::kKept);
    now.token = fresh.token;
    now.pinned = true;
  }
  now.base = fresh.base;
  now.writable = fresh.writable;
  now.transient = now.transient || fresh.transient;
  ++stats_.upgrades;
  return {};
}

// ---- ranges ----

// Adds a use to each page of the range. `held` is how many got one, also when it fails.
RangeResult Tlb::hold(AddressSpaceId asid, std::uint64_t first, std::uint64_t pages,
                      PageAccess access, std::size_t& held) {
  for (held = 0; held < pages;) {
    std::uint64_t page = first + held;
    Index index = look_up(asid, page);
    if (index == kNone) {
      std::size_t most =
          static_cast<std::size_t>(std::min<std::uint64_t>(pages - held, kLongestRun));
      std::size_t run = 1;
      while (run < most && find(asid, page + run) == kNone) ++run;
      stats_.misses += run - 1;
      std::size_t filled = 0;
      RangeResult result = fill(asid, page, run, access, filled);
      held += filled;
      if (result.outcome != RangeOutcome::kReady) return result;
      continue;
    }
    if (access == PageAccess::kWrite && !entries_[index].writable) {
      RangeResult result = upgrade(index);
      if (result.outcome != RangeOutcome::kReady) return result;
    }
    ++entries_[index].uses;
    ++held;
  }
  return {};
}

Tlb::Index Tlb::find_of_use(AddressSpaceId asid, std::uint64_t page, std::uint64_t stamp) const {
  Index index = find(asid, page);
  if (index != kNone && entries_[index].made_at <= stamp) return index;
  for (const Index i : doomed_) {
    const Entry& entry = entries_[i];
    if (entry.page == page && entry.asid == asid && entry.made_at <= stamp &&
        stamp < entry.doomed_at) {
      return i;
    }
  }
  return kNone;
}

void Tlb::let_go(AddressSpaceId asid, std::uint64_t first, std::size_t pages, std::uint64_t stamp) {
  for (std::size_t i = 0; i < pages; ++i) {
    Index index = find_of_use(asid, first + i, stamp);
    assert(index != kNone && entries_[index].uses != 0);
    Entry& entry = entries_[index];
    if (--entry.uses != 0) continue;
    if (entry.place == Place::kDoomed || entry.transient) {
      unlink(index);
      drop(index, Mapping::kKept);
    }
  }
  trim_victims();
}

TlbUse& TlbUse::operator=(TlbUse&& other) noexcept {
  if (this == &other) return *this;
  release();
  tlb_ = std::exchange(other.tlb_, nullptr);
  asid_ = other.asid_;
  vaddr_ = other.vaddr_;
  length_ = std::exchange(other.length_, 0);
  stamp_ = other.stamp_;
  result_ = other.result_;
  return *this;
}

void TlbUse::release() {
  Tlb* tlb = std::exchange(tlb_, nullptr);
  if (tlb == nullptr) return;
  std::uint64_t first = vaddr_ >> tlb->page_shift_;
  std::uint64_t last = (vaddr_ + (length_ - 1)) >> tlb->page_shift_;
  --tlb->uses_;
  tlb->let_go(asid_, first, static_cast<std::size_t>(last - first + 1), stamp_);
}

std::uint64_t TlbUse::address(std::uint64_t vaddr) const {
  assert(tlb_ != nullptr && vaddr - vaddr_ < length_);
  Tlb::Index index = tlb_->find_of_use(asid_, vaddr >> tlb_->page_shift_, stamp_);
  assert(index != Tlb::kNone);
  return tlb_->entries_[index].base + (vaddr & (tlb_->config_.page_size - 1));
}

}  // namespace clan

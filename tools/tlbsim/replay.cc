#include "replay.h"

#include <algorithm>

namespace clan::tlbsim {
namespace {

class AlwaysPresent : public Pinner {
 public:
  PinResult pin(AddressSpaceId, std::uint64_t page, PageAccess access,
                std::span<PinnedPage> out) override {
    for (PinnedPage& pinned : out) {
      pinned = {page++ << 12, 0, access == PageAccess::kWrite, false};
    }
    return {PinOutcome::kPinned, 0};
  }
  void unpin(AddressSpaceId, std::uint64_t, std::uint64_t) override {}
  void forget(AddressSpaceId, std::uint64_t, std::uint64_t) override {}
};

}  // namespace

Result<Replay> Replay::create(std::size_t primary_entries, std::size_t victim_entries) {
  TlbConfig config;
  config.primary_entries = primary_entries;
  config.victim_entries = victim_entries;
  config.track_compulsory = true;
  auto pinner = std::make_unique<AlwaysPresent>();
  Result<std::unique_ptr<Tlb>> tlb = Tlb::create(config, *pinner);
  if (!tlb) return tlb.error();
  return Replay(std::move(pinner), std::move(*tlb));
}

void Replay::access(const Access& access) {
  const TlbStats& stats = tlb_->stats();
  std::uint64_t lookups = stats.hits + stats.misses;
  std::uint64_t compulsory = stats.compulsory_misses;
  std::uint64_t non_compulsory = stats.non_compulsory_misses();
  PageAccess rights = access.op == Op::kRead ? PageAccess::kRead : PageAccess::kWrite;
  // A request longer than the Tlb is split, as the NIC's driver splits it.
  std::uint64_t most = (tlb_->max_range_pages() * tlb_->config().page_size + 1) / 2;
  for (std::uint64_t done = 0; done < access.length;) {
    std::uint64_t piece = std::min(access.length - done, most);
    tlb_->acquire(access.pid, access.vaddr + done, piece, rights).release();
    done += piece;
  }
  OpCounts& counts = counts_[static_cast<std::size_t>(access.op)];
  ++counts.accesses;
  counts.pages += stats.hits + stats.misses - lookups;
  counts.compulsory += stats.compulsory_misses - compulsory;
  counts.non_compulsory += stats.non_compulsory_misses() - non_compulsory;
}

OpCounts Replay::total() const {
  OpCounts sum;
  for (const OpCounts& counts : counts_) {
    sum.accesses += counts.accesses;
    sum.pages += counts.pages;
    sum.compulsory += counts.compulsory;
    sum.non_compulsory += counts.non_compulsory;
  }
  return sum;
}

}  // namespace clan::tlbsim

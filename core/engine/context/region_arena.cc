#include "engine/context/region_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/mapping.h"

namespace clan::engine {
namespace {

constexpr std::uint64_t kArenaBytes = 32u << 20;

}  // namespace

Result<RegionArena::Region> RegionArena::allocate(std::uint64_t bytes) {
  bytes = round_to_pages(bytes);
  std::lock_guard lock(mutex_);
  auto fits =
      std::find_if(free_.begin(), free_.end(), [&](const Region& r) { return r.bytes == bytes; });
  if (fits != free_.end()) {
    Region region = *fits;
    free_.erase(fits);
    return region;
  }
  if (!block_ || block_->size() - used_ < bytes) {
    auto block = nic::MemoryBlock::create(std::max(kArenaBytes, bytes));
    if (!block) return block.error();
    block_ = std::move(*block);
    used_ = 0;
  }
  Region region{block_, used_, bytes};
  used_ += bytes;
  return region;
}

void RegionArena::free(const Region& region) {
  // Frees the pages of the memfd, so that the next user finds zeros and idle memory is given back.
  if (::madvise(region.data(), region.bytes, MADV_REMOVE) != 0) {
    std::memset(region.data(), 0, region.bytes);
  }
  std::lock_guard lock(mutex_);
  free_.push_back(region);
}

}  // namespace clan::engine

// RegionArena: ring memory shared with one peer, which can spoil no other.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "clan/result.h"
#include "nic/memory_block.h"

namespace clan::engine {

/// Thread-safe.
class RegionArena {
 public:
  struct Region {
    std::shared_ptr<nic::MemoryBlock> block;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::byte* data() const { return block->data() + offset; }
  };
  /// Whole pages, filled with zeros. ENOMEM, EMFILE: the kernel gives no more shared memory.
  Result<Region> allocate(std::uint64_t bytes);
  /// Gives the pages back to the kernel; the region may be allocated again.
  void free(const Region& region);

 private:
  std::mutex mutex_;
  std::vector<Region> free_;
  std::shared_ptr<nic::MemoryBlock> block_;
  std::uint64_t used_ = 0;
};

}  // namespace clan::engine

// Memory that the program has asked MPI for (MPI_Alloc_mem): CLAN memory, so that peers map a
// window which lies there and store into it, instead of asking its owner or the kernel. Nothing of
// Open MPI here; mpool.cc is what it calls.
#pragma once

#include <clan/memory.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace clan::mpi {

/// Thread-safe.
class Pool {
 public:
  /// Each block is a memfd of its own; a program that asks for more has the others by malloc().
  static constexpr std::size_t kMostBlocks = 256;

  /// Whole pages, zeroed. Null: there are too many, or no memory.
  std::byte* allocate(std::size_t bytes) {
    std::lock_guard lock(mutex_);
    if (blocks_.size() >= kMostBlocks) return nullptr;
    auto memory = Memory::allocate(bytes);
    if (!memory) return nullptr;
    auto block = std::make_shared<Memory>(std::move(*memory));
    blocks_[reinterpret_cast<std::uintptr_t>(block->data())] = block;
    return block->data();
  }

  /// False: it is no block's beginning. The memory goes when nobody has it from find() any more.
  bool free(void* base) {
    std::lock_guard lock(mutex_);
    return blocks_.erase(reinterpret_cast<std::uintptr_t>(base)) != 0;
  }

  /// The block in which all of these bytes lie, or null.
  std::shared_ptr<Memory> find(const void* base, std::size_t bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(base);
    std::lock_guard lock(mutex_);
    auto above = blocks_.upper_bound(address);
    if (above == blocks_.begin()) return nullptr;
    const auto& [start, block] = *--above;
    if (address - start > block->size() || bytes > block->size() - (address - start))
      return nullptr;
    return block;
  }

 private:
  std::mutex mutex_;
  std::map<std::uintptr_t, std::shared_ptr<Memory>> blocks_;  ///< by address
};

}  // namespace clan::mpi

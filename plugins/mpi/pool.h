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
  /// The size below which a block shares its page. A program that asks for many of them attaches
  /// each to a dynamic window, and Open MPI has 64 places for what is attached: those of malloc()
  /// lie together, and share a place by pages.
  static constexpr std::size_t kMostSmall = 16;
  static constexpr std::size_t kSmall = 4096;

  /// Whole pages, zeroed. Null: there are too many, or no memory.
  std::byte* allocate(std::size_t bytes) {
    const bool small = bytes < kSmall;
    std::lock_guard lock(mutex_);
    if (blocks_.size() >= kMostBlocks || (small && small_ >= kMostSmall)) return nullptr;
    auto memory = Memory::allocate(bytes);
    if (!memory) return nullptr;
    std::byte* const base = memory->data();
    blocks_[reinterpret_cast<std::uintptr_t>(base)] = {std::make_shared<Memory>(std::move(*memory)),
                                                       small};
    small_ += small;
    return base;
  }

  /// False: it is no block's beginning. The memory goes when nobody has it from find() any more.
  bool free(void* base) {
    std::lock_guard lock(mutex_);
    const auto at = blocks_.find(reinterpret_cast<std::uintptr_t>(base));
    if (at == blocks_.end()) return false;
    small_ -= at->second.small;
    blocks_.erase(at);
    return true;
  }

  /// The block in which all of these bytes lie, or null.
  std::shared_ptr<Memory> find(const void* base, std::size_t bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(base);
    std::lock_guard lock(mutex_);
    auto above = blocks_.upper_bound(address);
    if (above == blocks_.begin()) return nullptr;
    const auto& [start, block] = *--above;
    const std::size_t size = block.memory->size();
    if (address - start > size || bytes > size - (address - start)) return nullptr;
    return block.memory;
  }

 private:
  struct Block {
    std::shared_ptr<Memory> memory;
    bool small = false;
  };

  std::mutex mutex_;
  std::map<std::uintptr_t, Block> blocks_;  ///< by address
  std::size_t small_ = 0;                   ///< how many of them are
};

}  // namespace clan::mpi

// CLAN memory: allocated by the engine so that peers can map it and store into it directly (PIO).
#pragma once

#include <clan/context.h>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace clan {

namespace nic {
class MemoryBlock;
}

/// Page-aligned, zero-filled, unreserved memory, never in a file system, until its last Memory,
/// Aperture and mapping goes. Rights are to whole pages: memory exported read-only is mapped
/// read-only by everyone else, memory that one peer may write is visible as a whole to it. Use
/// separate memories for separate trust.
class CLAN_EXPORT Memory {
 public:
  /// ENOMEM, EINVAL. The size is rounded up to pages.
  static Result<Memory> allocate(std::size_t bytes);
  Memory(Memory&&) noexcept = default;
  Memory& operator=(Memory&&) noexcept = default;

  std::byte* data() const;
  std::size_t size() const;
  std::span<std::byte> span() const { return {data(), size()}; }

  const std::shared_ptr<nic::MemoryBlock>& block() const { return block_; }

 private:
  explicit Memory(std::shared_ptr<nic::MemoryBlock> block) : block_(std::move(block)) {}
  std::shared_ptr<nic::MemoryBlock> block_;
};

}  // namespace clan

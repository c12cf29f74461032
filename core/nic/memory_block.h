// MemoryBlock: memory that CLAN allocates so that peers can map it.
//
// A block is one range of the owner's addresses, backed by sealed memfds ("pieces"), at first one.
// Revocation puts a fresh memfd behind its pages: the owner keeps addresses and bytes, and nobody
// reads what a peer still has mapped. The peer need not cooperate.
//
// Any thread. NICs for several users' peers, each with its own lock, may share a block.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/fd.h"
#include "base/mapping.h"

namespace clan::nic {

class MemoryBlock {
 public:
  /// A block of `bytes` rounded up to pages, zero-filled, unreserved.
  static Result<std::shared_ptr<MemoryBlock>> create(std::size_t bytes);

  std::byte* data() const { return mapping_.data(); }
  std::size_t size() const { return mapping_.size(); }
  bool contains(const void* p, std::size_t length) const;

  /// One memfd and where a range of the block lies in it.
  struct Backing {
    std::uint64_t id = 0;  ///< names the memfd among its owner's; never reused
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;  ///< of the whole memfd
    int memfd = -1;
    std::shared_ptr<const Fd> file;  ///< keeps it open
  };

  /// The backing of [offset, offset + length) when one memfd covers it.
  std::optional<Backing> find(std::uint64_t offset, std::uint64_t length) const;

  /// Puts a fresh memfd with the same contents behind a range's pages. Untouched ones stay holes.
  Status replace(std::uint64_t offset, std::uint64_t length);

  /// Peers may only read this block from now on; the owner still writes.
  Status seal_read_only();
  /// Peers will write to the memfd behind [offset, offset + length): none of them may seal it.
  Status seal_shared(std::uint64_t offset, std::uint64_t length);
  bool read_only() const;

 private:
  struct Piece {
    std::uint64_t start;  ///< in the block, whole pages
    std::uint64_t length;
    std::uint64_t id;
    std::uint64_t file_offset;
    std::shared_ptr<Fd> memfd;
    std::uint64_t file_bytes;
  };
  /// Those of whole pages from `start` on that are no holes; `to` is zero. Under the mutex.
  void copy_pages(std::byte* to, std::uint64_t start, std::uint64_t bytes) const;

  Mapping mapping_;
  mutable std::recursive_mutex mutex_;  ///< what is below; a leaf
  std::vector<Piece> pieces_;
  bool read_only_ = false;
  bool shared_ = false;  ///< seal_shared() has been called
};

}  // namespace clan::nic

#include "nic/memory_block.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/random.h"

namespace clan::nic {

Result<std::shared_ptr<MemoryBlock>> MemoryBlock::create(std::size_t bytes) {
  if (bytes == 0 || bytes > (std::size_t{1} << 46)) return Error{EINVAL, "size of CLAN memory"};
  bytes = round_to_pages(bytes);
  auto memfd = create_memfd("clan-memory", bytes);
  if (!memfd) return memfd.error();
  auto mapping = Mapping::map(memfd->get(), bytes, Mapping::Access::kReadWrite);
  if (!mapping) return mapping.error();
  auto block = std::make_shared<MemoryBlock>();
  block->mapping_ = std::move(*mapping);
  block->pieces_.push_back(
      {0, bytes, random_u64(), 0, std::make_shared<Fd>(std::move(*memfd)), bytes});
  return block;
}

bool MemoryBlock::contains(const void* p, std::size_t length) const {
  auto address = reinterpret_cast<std::uintptr_t>(p);
  auto base = reinterpret_cast<std::uintptr_t>(data());
  return address >= base && address - base <= size() && length <= size() - (address - base);
}

bool MemoryBlock::read_only() const {
  std::lock_guard lock(mutex_);
  return read_only_;
}

std::optional<MemoryBlock::Backing> MemoryBlock::find(std::uint64_t offset,
                                                      std::uint64_t length) const {
  std::lock_guard lock(mutex_);
  for (const Piece& piece : pieces_) {
    if (offset < piece.start || offset + length > piece.start + piece.length) continue;
    return Backing{piece.id, piece.file_offset + (offset - piece.start), piece.file_bytes,
                   piece.memfd->get(), piece.memfd};
  }
  return std::nullopt;
}

void MemoryBlock::copy_pages(std::byte* to, std::uint64_t start, std::uint64_t bytes) const {
  for (const Piece& piece : pieces_) {
    const std::uint64_t end = std::min(piece.start + piece.length, start + bytes);
    const std::uint64_t shift = piece.file_offset - piece.start;  // may wrap, and wraps back
    for (std::uint64_t at = std::max(piece.start, start); at < end;) {
      const off_t page = ::lseek(piece.memfd->get(), static_cast<off_t>(at + shift), SEEK_DATA);
      if (page < 0 && errno == ENXIO) break;  // only holes up to its end
      const std::uint64_t from = page < 0 ? at : static_cast<std::uint64_t>(page) - shift;
      if (from >= end) break;
      const off_t hole = ::lseek(piece.memfd->get(), static_cast<off_t>(from + shift), SEEK_HOLE);
      at = hole < 0 ? end : std::min(static_cast<std::uint64_t>(hole) - shift, end);
      std::memcpy(to + (from - start), data() + from, at - from);
    }
  }
}

Status MemoryBlock::replace(std::uint64_t offset, std::uint64_t length) {
  std::lock_guard lock(mutex_);
  const std::uint64_t start = offset & ~(kPageSize - 1);
  const std::uint64_t bytes = round_to_pages(offset + length) - start;
  auto fresh = create_memfd("clan-memory", bytes);
  if (!fresh) return fresh.error();
  auto copy = Mapping::map(fresh->get(), bytes, Mapping::Access::kReadWrite);
  if (!copy) return copy.error();
  copy_pages(copy->data(), start, bytes);
  void* p = ::mmap(data() + start, bytes, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fresh->get(), 0);
  if (p == MAP_FAILED) return errno_error("mmap(MAP_FIXED, fresh memory)");
  // Mappings that exist stay writable: ours. Peers get none.
  Status sealed = read_only_ ? seal_future_write(fresh->get()) : Status();
  // The rest of the old pieces, which may lose head, tail, middle or all.
  std::vector<Piece> pieces;
  for (const Piece& piece : pieces_) {
    const std::uint64_t end = piece.start + piece.length;
    if (piece.start < start) {
      Piece left = piece;
      left.length = (end < start ? end : start) - piece.start;
      pieces.push_back(left);
    }
    if (end > start + bytes) {
      Piece right = piece;
      right.start = piece.start > start + bytes ? piece.start : start + bytes;
      right.length = end - right.start;
      right.file_offset = piece.file_offset + (right.start - piece.start);
      pieces.push_back(right);
    }
  }
  pieces.push_back({start, bytes, random_u64(), 0, std::make_shared<Fd>(std::move(*fresh)), bytes});
  pieces_ = std::move(pieces);
  return sealed;
}

Status MemoryBlock::seal_read_only() {
  std::lock_guard lock(mutex_);
  if (read_only_) return {};
  if (shared_) {  // what peers have had for writing cannot be sealed any more
    if (auto s = replace(0, size()); !s) return s;
  }
  for (const Piece& piece : pieces_) {
    if (auto s = seal_future_write(piece.memfd->get()); !s) return s;
  }
  read_only_ = true;
  return {};
}

Status MemoryBlock::seal_shared(std::uint64_t offset, std::uint64_t length) {
  std::lock_guard lock(mutex_);
  const auto backing = find(offset, length);
  if (!backing) return Error{EINVAL, "no such memory"};
  shared_ = true;
  return seal_seals(backing->memfd);
}

}  // namespace clan::nic

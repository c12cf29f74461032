// fi_mr_reg(): a region that peers may reach, which is an aperture of the engine with the key as its name.
#pragma once

#include <optional>
#include <vector>

#include <clan/aperture.h>

#include "provider.h"

namespace clan::ofi {

class Counter;
class Domain;

/// What the owner tells who looks up the aperture of a key.
struct RegionNote {
  std::uint64_t base = 0;        ///< its address in the owner
  std::uint32_t tell_owner = 0;  ///< 1: the owner wants to hear of each access
  std::uint32_t reserved = 0;
};
static_assert(sizeof(RegionNote) <= kMaxApertureNote);

class MemoryRegion final : public fid_mr {
 public:
  using Face = fid_mr;
  static fi_ops_mr register_ops;
  ~MemoryRegion();

  /// Under the domain's lock. Where [address, address + length) of a remote access lies; null when it does
  /// not lie in the region or the region does not allow it.
  std::byte* locate(std::uint64_t address, std::size_t length, std::uint64_t access) const;
  /// A peer has read (FI_REMOTE_READ) or written the region.
  void note_access(std::uint64_t flags);

 private:
  explicit MemoryRegion(Domain& domain) : domain_(domain) {}
  static int open(fid_t domain, const fi_mr_attr* attr, std::uint64_t flags, fid_mr** region);
  static int reg(fid_t id, const void* buffer, std::size_t length, std::uint64_t access, std::uint64_t offset,
                 std::uint64_t key, std::uint64_t flags, fid_mr** region, void* context);
  static int regv(fid_t id, const iovec* iov, std::size_t count, std::uint64_t access, std::uint64_t offset,
                  std::uint64_t key, std::uint64_t flags, fid_mr** region, void* context);
  static int regattr(fid_t id, const fi_mr_attr* attr, std::uint64_t flags, fid_mr** region);
  int expose();
  static int close(fid_t id);
  static int bind(fid_t id, fid_t to, std::uint64_t flags);
  static int control(fid_t id, int command, void* argument);
  static fi_ops ops_;

  Domain& domain_;
  Held domain_held_;
  std::span<std::byte> memory_;
  std::uint64_t access_ = 0;
  bool listed_ = false;
  std::optional<Aperture> aperture_;
  Counter* counter_ = nullptr;
  Held counter_held_;
  std::uint64_t counter_flags_ = 0;
};

}  // namespace clan::ofi

// fi_mr_reg(): a region that peers may reach, which is an aperture of the engine with the key as
// its name.
//
// Each piece of a region of several is an aperture, and what has the key as its name is a table of
// their cookies (RegionPiece), which peers read.
#pragma once

#include <clan/aperture.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "system/provider.h"

namespace clan::ofi {

class Counter;
class Domain;

/// What the owner tells a peer that looks up the aperture of a key.
struct RegionNote {
  std::uint64_t base = 0;        ///< its address in the owner
  std::uint32_t tell_owner = 0;  ///< 1: 1: the owner wants an event for each access
  std::uint32_t pieces = 0;      ///< not 0: the aperture is a table of so many RegionPieces
};
static_assert(sizeof(RegionNote) <= kMaxApertureNote);

/// One line of the table. The pieces lie one behind the other in the region, whatever their
/// addresses.
struct RegionPiece {
  RdmaCookie cookie;
  std::uint64_t length = 0;
};
static_assert(sizeof(RegionPiece) == 56);

class MemoryRegion final : public fid_mr {
 public:
  using Face = fid_mr;
  static fi_ops_mr register_ops;
  ~MemoryRegion();

  // Under the domain's lock.
  /// Whether [address, address + length) of a remote access lies in the region, and the region
  /// allows it.
  bool allows(std::uint64_t address, std::size_t length, std::uint64_t access) const;
  /// Where it lies; null also when that is not in one piece.
  std::byte* locate(std::uint64_t address, std::size_t length, std::uint64_t access) const;
  /// A peer has read (FI_REMOTE_READ) or written the region.
  void note_access(std::uint64_t flags);

 private:
  explicit MemoryRegion(Domain& domain) : domain_(domain) {}
  static int open(fid_t domain, const fi_mr_attr* attr, std::uint64_t flags, fid_mr** region);
  static int reg(fid_t id, const void* buffer, std::size_t length, std::uint64_t access,
                 std::uint64_t offset, std::uint64_t key, std::uint64_t flags, fid_mr** region,
                 void* context);
  static int regv(fid_t id, const iovec* iov, std::size_t count, std::uint64_t access,
                  std::uint64_t offset, std::uint64_t key, std::uint64_t flags, fid_mr** region,
                  void* context);
  static int regattr(fid_t id, const fi_mr_attr* attr, std::uint64_t flags, fid_mr** region);
  int set_up(const fi_mr_attr& attr);
  int expose();
  static int bind(fid_t id, fid_t to, std::uint64_t flags);
  static fi_ops ops_;

  Domain& domain_;
  Held domain_held_;
  int expose_pieces(Rights rights);
  std::uint64_t base() const;
  std::vector<std::span<std::byte>> pieces_;
  std::size_t size_ = 0;  ///< of all pieces
  std::uint64_t access_ = 0;
  bool listed_ = false;
  // Peers must not see the table go before its aperture.
  struct FreePages {
    void operator()(RegionPiece* table) const { std::free(table); }
  };
  std::unique_ptr<RegionPiece[], FreePages> table_;
  std::vector<Aperture> piece_apertures_;
  std::optional<Aperture> aperture_;
  Counter* counter_ = nullptr;
  Held counter_held_;
  std::uint64_t counter_flags_ = 0;
};

}  // namespace clan::ofi

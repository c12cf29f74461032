// Atomic operations on types: which there are, and how they are carried out on this process's
// memory.
#pragma once

#include <cstddef>

#include "system/provider.h"

namespace clan::ofi {

enum class AtomicKind : unsigned char {
  kWrite = 0,    ///< fi_atomic
  kFetch = 1,    ///< fi_fetch_atomic
  kCompare = 2,  ///< fi_compare_atomic
};

/// Bytes of values that one operation can work on.
constexpr std::size_t kMostAtomicBytes = std::size_t{1} << 30;
/// Up to this many, in one place, go in one message; more are worked on in steps of that size.
constexpr std::size_t kShortAtomicBytes = 8192;

/// Bytes of one value; 0: there is no such type.
std::size_t atomic_size(fi_datatype type);
bool atomic_valid(fi_datatype type, fi_op op, AtomicKind kind);

/// Values that an operation brings for each one it works on.
constexpr std::size_t atomic_operands(fi_op op, AtomicKind kind) {
  if (kind == AtomicKind::kCompare) return 2;
  return op == FI_ATOMIC_READ ? 0 : 1;
}

/// What a region must allow for it.
constexpr std::uint64_t atomic_access(fi_op op, AtomicKind kind) {
  return (op != FI_ATOMIC_READ ? FI_REMOTE_WRITE : 0) |
         (kind != AtomicKind::kWrite ? FI_REMOTE_READ : 0);
}

/// Carries out a valid operation on `count` values. Each is atomic with respect to the processor's
/// own atomic operations where the type has at most 8 bytes and is aligned. `found` (may be null)
/// gets the values before.
void apply_atomic(fi_datatype type, fi_op op, std::byte* target, const std::byte* operands,
                  const std::byte* comparands, std::byte* found, std::size_t count);

class MemoryRegion;
/// The same on a region that peers may reach. 0, or FI_EACCES: it does not allow that, or does not
/// go that far.
int apply_atomic(const MemoryRegion& region, std::uint64_t address, fi_datatype type, fi_op op,
                 AtomicKind kind, const std::byte* operands, const std::byte* comparands,
                 std::byte* found, std::size_t count);

}  // namespace clan::ofi

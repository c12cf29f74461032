// Memory of this rank that peers may reach: what Open MPI has registered.
#pragma once

#include <clan/aperture.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

/// What a rank gives to others so that they reach a region of its memory; 64 bytes, copied by Open
/// MPI.
struct mca_btl_base_registration_handle_t {
  clan::RdmaCookie cookie;
  std::uint64_t base = 0;     ///< address of the region in its owner
  std::uint16_t lasting = 0;  ///< a window: worth remembering
  std::uint16_t block = 0;    ///< of all of a block of the pool's: it stays until that is freed
  std::uint32_t check = 0;    ///< of the rest: see read_handle()
};
static_assert(sizeof(mca_btl_base_registration_handle_t) == 64);

namespace clan::mpi {

using Handle = mca_btl_base_registration_handle_t;

inline std::uint32_t check_of(const Handle& handle) {
  Handle rest = handle;
  rest.check = 0;
  // A factor for each place, so that no product waits for another: this is on the way of each
  // access.
  std::uint64_t sum = 0, factor = 0x9e3779b97f4a7c15;
  for (const std::uint64_t word : std::bit_cast<std::array<std::uint64_t, 8>>(rest)) {
    sum += word * factor;
    factor += 0xbf58476d1ce4e5b8;  // even: the factors are odd
  }
  return static_cast<std::uint32_t>(sum >> 32);
}

/// False: it was being overwritten. Open MPI keeps the handles of a dynamic window's regions in
/// memory that their owner moves them in, and gives us the address there after it has given up the
/// lock over them.
inline bool read_handle(const Handle& shared, Handle* handle) {
  std::array<std::uint64_t, 8> words;
  const auto* from = reinterpret_cast<const volatile std::uint64_t*>(&shared);
  for (std::uint64_t& word : words) word = *from++;
  *handle = std::bit_cast<Handle>(words);
  return handle->check == check_of(*handle);
}

/// Whether that stretch of the owner's memory lies in the handle's region.
inline bool covers(const Handle& handle, std::uint64_t address, std::size_t bytes) {
  const std::uint64_t length = handle.cookie.length;
  return address >= handle.base && address - handle.base <= length &&
         bytes <= length - (address - handle.base);
}

struct Registration {
  Handle handle;  // first: Open MPI has its address
  Aperture aperture;
};

/// The windows, for operations that peers ask for. Thread-safe.
class Registrations {
 public:
  void add(const Registration& registration) {
    std::lock_guard lock(mutex_);
    regions_[registration.handle.cookie.aperture] = registration.handle;
  }
  /// When it returns, no operation on the region is under way and none begins.
  void remove(const Registration& registration) {
    std::lock_guard lock(mutex_);
    regions_.erase(registration.handle.cookie.aperture);
  }

  /// Calls `use` with the address, if that stretch lies in a region that the key opens; its answer,
  /// or ESTALE, EACCES, ERANGE. All arguments are a peer's words.
  template <typename Use>
  int with(std::uint32_t aperture, std::uint64_t key, std::uint64_t address, std::size_t bytes,
           bool write, Use use) {
    std::lock_guard lock(mutex_);
    const auto found = regions_.find(aperture);
    if (found == regions_.end()) return ESTALE;
    const RdmaCookie& cookie = found->second.cookie;
    if (cookie.key != key || !includes(cookie.rights, write ? Rights::kWrite : Rights::kRead))
      return EACCES;
    if (!covers(found->second, address, bytes)) return ERANGE;
    return use(reinterpret_cast<std::byte*>(address));
  }

  /// The window in which that stretch lies.
  std::optional<Handle> find(std::uint64_t address, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    for (const auto& [number, handle] : regions_) {
      if (covers(handle, address, bytes)) return handle;
    }
    return std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::uint32_t, Handle> regions_;  ///< by the number of their aperture
};

}  // namespace clan::mpi

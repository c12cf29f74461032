// Memory of this rank that peers may reach: what Open MPI has registered.
#pragma once

#include <clan/aperture.h>

#include <cerrno>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <utility>

/// What a rank gives to others so that they reach a region of its memory; 64 bytes, copied by Open
/// MPI.
struct mca_btl_base_registration_handle_t {
  clan::RdmaCookie cookie;
  std::uint64_t base = 0;     ///< address of the region in its owner
  std::uint32_t lasting = 0;  ///< a window: worth remembering
  std::uint32_t block = 0;    ///< of all of a block of the pool's: it stays until that is freed
};
static_assert(sizeof(mca_btl_base_registration_handle_t) == 64);

namespace clan::mpi {

using Handle = mca_btl_base_registration_handle_t;

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
    const std::uint64_t base = found->second.base;
    if (address < base || address - base > cookie.length ||
        bytes > cookie.length - (address - base))
      return ERANGE;
    return use(reinterpret_cast<std::byte*>(address));
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::uint32_t, Handle> regions_;  ///< by the number of their aperture
};

}  // namespace clan::mpi

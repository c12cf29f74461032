// Mapping: an owned range of mapped memory. Shared mappings of a memfd let two processes see the
// same bytes. Nothing is reserved: untouched pages cost nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "clan/detail/system_call.h"
#include "clan/result.h"

namespace clan {

constexpr std::size_t kPageSize = 4096;

/// `bytes` rounded up to whole pages.
constexpr std::size_t round_to_pages(std::size_t bytes) {
  return (bytes + kPageSize - 1) & ~(kPageSize - 1);
}

class Mapping {
 public:
  enum class Access { kRead, kReadWrite };
  enum class Locking {
    kAsProcess,  ///< after mlockall(MCL_FUTURE) all of it has memory at once, and keeps it
    kNever,
  };

  Mapping() = default;
  /// Maps a memfd's first `bytes`. EINVAL: it is shorter, so a touch would raise SIGBUS.
  static Result<Mapping> map(int memfd, std::size_t bytes, Access access,
                             Locking locking = Locking::kAsProcess);

  std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return memory_ ? memory_.get_deleter().bytes : 0; }
  std::span<std::byte> span() const { return {data(), size()}; }
  explicit operator bool() const { return data() != nullptr; }
  void reset() { memory_.reset(); }
  /// Gives the range up without unmapping it: the caller owns it now.
  std::byte* release() { return memory_.release(); }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* memory) const { sys::munmap(memory, bytes); }
  };
  Mapping(std::byte* data, std::size_t size) : memory_(data, Unmap{size}) {}
  std::unique_ptr<std::byte, Unmap> memory_;
};

}  // namespace clan

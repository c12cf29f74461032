// Mapping: an owned range of mapped memory.
//
// Shared mappings of a memfd are how two processes come to see the same bytes. A mapping made here
// is not reserved: pages that nobody touches cost nothing.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

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
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { reset(); }

  /// Maps `bytes` of a memfd from its start. EINVAL when the file is shorter than that: touching a
  /// page behind its end would raise SIGBUS.
  static Result<Mapping> map(int memfd, std::size_t bytes, Access access,
                             Locking locking = Locking::kAsProcess);

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> span() const { return {data_, size_}; }
  explicit operator bool() const { return data_ != nullptr; }
  void reset();
  /// Gives the range up without unmapping it: the caller owns it now.
  std::byte* release() {
    size_ = 0;
    return std::exchange(data_, nullptr);
  }

 private:
  Mapping(std::byte* data, std::size_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace clan

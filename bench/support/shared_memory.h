// Memory for the measuring processes of one group: an anonymous shared mapping made before they
// are forked. Used by the harness and by the bare baselines, which know no protocol.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace clan::bench {

class SharedMemory {
 public:
  SharedMemory() = default;
  explicit SharedMemory(std::size_t bytes) : bytes_(bytes) {
    void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED) data_ = static_cast<std::byte*>(p);
  }
  /// A mapping of a file, e.g. one memfd that several processes map for themselves.
  SharedMemory(std::size_t bytes, int fd) : bytes_(bytes) {
    void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (p != MAP_FAILED) data_ = static_cast<std::byte*>(p);
  }
  SharedMemory(SharedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SharedMemory() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }

  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace clan::bench

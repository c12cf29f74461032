// A file descriptor and a shared mapping that are given back once.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <utility>

namespace clan::bench {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

/// Memory of the processes of a group: anonymous and made before they are forked, or of a file that
/// each of them maps for itself.
class SharedMemory {
 public:
  SharedMemory() = default;
  explicit SharedMemory(std::size_t bytes, int fd = -1) : bytes_(bytes) {
    const int flags = fd < 0 ? MAP_ANONYMOUS : MAP_POPULATE;
    void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, 0);
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

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace clan::bench

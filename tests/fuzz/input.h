// What a fuzzer has to say, field by field. A number that the input has no more bytes for is 0.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace clan::fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ == size_; }
  template <typename T>
  T take() {
    T value{};
    const std::size_t n = std::min(sizeof value, size_ - at_);
    if (n > 0) std::memcpy(&value, data_ + at_, n);
    at_ += n;
    return value;
  }
  std::uint8_t byte() { return take<std::uint8_t>(); }
  /// At most as many as there are.
  std::span<const std::byte> bytes(std::size_t n) {
    n = std::min(n, size_ - at_);
    at_ += n;
    return {reinterpret_cast<const std::byte*>(data_) + at_ - n, n};
  }
  /// Mostly what is plausible, sometimes anything.
  std::uint64_t number(std::uint64_t unit = 4096) {
    switch (byte() % 4) {
      case 0: return byte();
      case 1: return byte() * unit;
      case 2: return take<std::uint16_t>();
      default: return take<std::uint64_t>();
    }
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

}  // namespace clan::fuzz

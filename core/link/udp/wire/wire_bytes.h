// Numbers and bytes of packets (wire.h), within a span, read or written in turn. Not thread-safe.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>

namespace clan::udp {

/// Converts to or from the wire. In one piece: a byte loop would alias everything.
template <typename T>
T big_endian(T value) {
  static_assert(std::endian::native == std::endian::little && std::is_unsigned_v<T>);
  if constexpr (sizeof(T) == 1) return value;
  if constexpr (sizeof(T) == 2) return __builtin_bswap16(value);
  if constexpr (sizeof(T) == 4) return __builtin_bswap32(value);
  if constexpr (sizeof(T) == 8) return __builtin_bswap64(value);
}

/// Writes big-endian numbers and bytes; what does not fit is dropped and ok() is false.
class Writer {
 public:
  explicit Writer(std::span<std::byte> out) : out_(out) {}

  template <typename T>
  void number(T value) {
    if (!room(sizeof value)) return;
    const T wire = big_endian(value);
    std::memcpy(out_.data() + at_, &wire, sizeof wire);
    at_ += sizeof wire;
  }
  void bytes(std::span<const std::byte> from) {
    if (!room(from.size())) return;
    if (!from.empty()) std::memcpy(out_.data() + at_, from.data(), from.size());
    at_ += from.size();
  }
  void zeros(std::size_t n) {
    if (!room(n)) return;
    if (n > 0) std::memset(out_.data() + at_, 0, n);
    at_ += n;
  }
  /// As Reader::field(), for a function that writes or reads the same fields.
  template <typename T>
  void field(const T& value) {
    number(value);
  }
  std::size_t size() const { return at_; }
  std::size_t left() const { return out_.size() - at_; }
  bool ok() const { return ok_; }

 private:
  bool room(std::size_t n) {
    if (n > out_.size() - at_) ok_ = false;
    return ok_;
  }
  std::span<std::byte> out_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

/// Reads big-endian numbers and bytes; beyond the end everything is 0 and ok() is false.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) : in_(in) {}

  template <typename T>
  T number() {
    if (!there(sizeof(T))) return T{};
    T wire;
    std::memcpy(&wire, in_.data() + at_, sizeof wire);
    at_ += sizeof wire;
    return big_endian(wire);
  }
  template <typename T>
  void field(T& value) {
    value = number<T>();
  }
  std::span<const std::byte> bytes(std::size_t n) {
    if (!there(n)) return {};
    at_ += n;
    return in_.subspan(at_ - n, n);
  }
  std::size_t left() const { return in_.size() - at_; }
  std::size_t at() const { return at_; }
  bool ok() const { return ok_; }

 private:
  bool there(std::size_t n) {
    if (n > in_.size() - at_) ok_ = false;
    return ok_;
  }
  std::span<const std::byte> in_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace clan::udp

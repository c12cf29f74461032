// Bytes that know where they belong: byte i of stream `seed` is a function of both, so a receiver
// finds bytes that are lost, repeated, displaced or of another stream without keeping a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace clan::test {

inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Fills `out` with the bytes that belong at `position`.
inline void fill_pattern(std::span<std::byte> out, std::uint64_t seed, std::uint64_t position) {
  std::size_t i = 0;
  while (i < out.size()) {
    const std::uint64_t word = mix(seed * 0x2545f4914f6cdd1du + (position + i) / 8);
    const std::size_t from = (position + i) % 8;
    const std::size_t n = out.size() - i < 8 - from ? out.size() - i : 8 - from;
    std::memcpy(out.data() + i, reinterpret_cast<const std::byte*>(&word) + from, n);
    i += n;
  }
}

/// The first byte of `bytes` that does not belong where it is; bytes.size() when all do.
inline std::size_t first_wrong_byte(std::span<const std::byte> bytes, std::uint64_t seed,
                                    std::uint64_t position) {
  std::byte expected[512];
  for (std::size_t i = 0; i < bytes.size();) {
    const std::size_t n = bytes.size() - i < sizeof expected ? bytes.size() - i : sizeof expected;
    fill_pattern({expected, n}, seed, position + i);
    if (std::memcmp(expected, bytes.data() + i, n) != 0) {
      for (std::size_t k = 0; k < n; ++k) {
        if (expected[k] != bytes[i + k]) return i + k;
      }
    }
    i += n;
  }
  return bytes.size();
}

inline bool is_pattern(std::span<const std::byte> bytes, std::uint64_t seed,
                       std::uint64_t position) {
  return first_wrong_byte(bytes, seed, position) == bytes.size();
}

inline std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed,
                                      std::uint64_t position = 0) {
  std::vector<std::byte> out(bytes);
  fill_pattern(out, seed, position);
  return out;
}

/// A small generator with a seed that is printed when a test fails.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() { return mix(++state_); }
  /// 0 … bound - 1
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  /// 1 … most, small numbers as likely as large ones.
  std::size_t size_up_to(std::size_t most) {
    const std::size_t scale = std::size_t{1}
                              << below(64 - static_cast<unsigned>(__builtin_clzll(most)));
    const std::size_t n = 1 + below(scale * 2);
    return n < most ? n : most;
  }

 private:
  std::uint64_t state_;
};

}  // namespace clan::test

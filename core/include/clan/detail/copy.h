// Copies of a few bytes whose number the compiler does not know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace clan {

/// Copies what is mostly small: up to 32 bytes without a call. For 0 bytes either pointer may be
/// null. Any alignment; the ranges must not overlap.
inline void copy_short(std::byte* to, const void* from, std::size_t bytes) {
  const auto* in = static_cast<const std::byte*>(from);
  const auto move = [&]<typename Word>(Word word, std::size_t at) {
    std::memcpy(&word, in + at, sizeof word);
    std::memcpy(to + at, &word, sizeof word);
  };
  // Words, the last overlapping: a wider load would stall on what has just been written by words.
  if (bytes > 32) {
    std::memcpy(to, in, bytes);
  } else if (bytes >= 8) {
    for (std::size_t at = 0; at + 8 < bytes; at += 8) move(std::uint64_t{}, at);
    move(std::uint64_t{}, bytes - 8);
  } else if (bytes >= 4) {
    move(std::uint32_t{}, 0);
    move(std::uint32_t{}, bytes - 4);
  } else if (bytes > 0) {
    to[0] = in[0];
    to[bytes / 2] = in[bytes / 2];
    to[bytes - 1] = in[bytes - 1];
  }
}

}  // namespace clan

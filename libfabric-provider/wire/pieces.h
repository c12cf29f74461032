// Bytes in pieces: what the parts of the data path that move them share.
#pragma once

#include <clan/detail/copy.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

namespace clan::ofi {

template <typename T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

/// The first sizeof(T) bytes, as what they are. False: there are fewer.
template <typename T>
bool take_front(std::span<const std::byte>& bytes, T* value) {
  if (bytes.size() < sizeof(T)) return false;
  std::memcpy(value, bytes.data(), sizeof(T));
  bytes = bytes.subspan(sizeof(T));
  return true;
}

inline void gather(std::byte* to, const iovec* iov, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    copy_short(to, iov[i].iov_base, iov[i].iov_len);
    to += iov[i].iov_len;
  }
}

// Calls f(piece, offset) for the parts of [skip, skip + length) of the pieces.
template <typename F>
void for_each_piece(const iovec* iov, std::size_t count, std::size_t skip, std::size_t length,
                    F&& f) {
  std::size_t done = 0;
  for (std::size_t i = 0; i < count && done < length; ++i) {
    if (skip >= iov[i].iov_len) {
      skip -= iov[i].iov_len;
      continue;
    }
    const std::size_t n = std::min(iov[i].iov_len - skip, length - done);
    f(std::span<std::byte>(static_cast<std::byte*>(iov[i].iov_base) + skip, n), done);
    done += n;
    skip = 0;
  }
}

}  // namespace clan::ofi

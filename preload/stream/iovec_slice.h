// The buffers of one call, and slices of them.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cstddef>

#include "os/scratch.h"

namespace clan::preload {

constexpr int kMostBuffers = 16;  ///< of an IovecSlice: stacks may be small
/// What the kernel moves at most in one call (MAX_RW_COUNT).
constexpr std::size_t kMostInCall = 0x7fff'f000;

inline std::size_t total(const iovec* buffers, int count) {
  std::size_t n = 0;
  for (int i = 0; i < count; ++i) n += buffers[i].iov_len;
  return n;
}

// Null buffers discard; the kernel's flag for that.
inline int discarding(const iovec* buffers, int count) {
  return count > 0 && buffers[0].iov_base == nullptr && buffers[0].iov_len > 0 ? MSG_TRUNC : 0;
}

inline msghdr message_of(const iovec* buffers, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(buffers);
  message.msg_iovlen = static_cast<std::size_t>(count);
  return message;
}

// The buffers after the first `skip` bytes, at most `most` bytes.
struct IovecSlice {
  iovec buffers[kMostBuffers];
  int count = 0;
  IovecSlice(const iovec* from, int n, std::size_t skip, std::size_t most = ~std::size_t{0}) {
    for (int i = 0; i < n && count < kMostBuffers && most > 0; ++i) {
      if (skip >= from[i].iov_len) {
        skip -= from[i].iov_len;
        continue;
      }
      auto* base = static_cast<char*>(from[i].iov_base);
      const std::size_t length = std::min(from[i].iov_len - skip, most);
      buffers[count++] = {base == nullptr ? nullptr : base + skip, length};
      most -= length;
      skip = 0;
    }
  }
};

/// A modified copy of a call's buffers, in memory of its own.
class Changed {
 public:
  /// Calls `change(buffer)` for each, until it returns false.
  template <typename Change>
  Changed(const iovec* from, int n, Change&& change)
      : memory_(static_cast<std::size_t>(n) * sizeof(iovec)) {
    for (iovec* to = buffers(); to != nullptr && count_ < n; ++count_) {
      to[count_] = from[count_];
      if (!change(to[count_])) break;
    }
  }
  /// Returns null if there was no memory.
  iovec* buffers() const { return memory_.as<iovec>(); }
  int count() const { return count_; }

 private:
  Scratch memory_;
  int count_ = 0;
};

/// Returns as much of the buffers as the kernel moves in one call.
inline Changed within_one_call(const iovec* from, int n) {
  return Changed(from, n, [left = kMostInCall](iovec& one) mutable {
    one.iov_len = std::min(one.iov_len, left);
    left -= one.iov_len;
    return one.iov_len > 0 || left > 0;
  });
}

}  // namespace clan::preload

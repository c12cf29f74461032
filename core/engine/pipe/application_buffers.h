// Copies from and into the buffers of an application, some of which may not be there.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "clan/face/pipe.h"

namespace clan {

inline std::size_t total(const iovec* buffers, int count) {
  std::size_t n = 0;
  for (int i = 0; i < count; ++i) n += buffers[i].iov_len;
  return n;
}

/// See Pipe::guard_copies(). Written before there is a pipe.
inline std::atomic<Pipe::CopyGuard> copy_guard{nullptr};

/// `copy()` touches the application's buffers. False: they are not there.
template <typename Copy>
bool guarded(Copy& copy) {
  const Pipe::CopyGuard guard =
      copy_guard.load(std::memory_order_relaxed);  // relaxed: set before there is a pipe
  if (guard == nullptr) {
    copy();
    return true;
  }
  return guard([](void* argument) { (*static_cast<Copy*>(argument))(); }, &copy);
}

/// Walks through the buffers of an application.
class Cursor {
 public:
  Cursor(const iovec* buffers, int count) : at_(buffers), end_(buffers + count) {}

  // Copies `n` bytes out of the buffers, which hold as many.
  void gather(std::byte* to, std::size_t n) {
    walk(n, [&to](const std::byte* piece, std::size_t k) {
      std::memcpy(to, piece, k);
      to += k;
    });
  }

  // Copies `n` bytes into the buffers, which have room for as many. Null buffers discard.
  void scatter(const std::byte* from, std::size_t n) {
    walk(n, [&from](std::byte* piece, std::size_t k) {
      if (piece != nullptr) std::memcpy(piece, from, k);
      from += k;
    });
  }

 private:
  template <typename Copy>
  void walk(std::size_t n, Copy&& copy) {
    for (; n > 0 && at_ != end_; ++at_, done_ = 0) {
      const std::size_t k = std::min(n, at_->iov_len - done_);
      auto* const base = static_cast<std::byte*>(at_->iov_base);
      if (k > 0) copy(base == nullptr ? base : base + done_, k);
      n -= k;
      done_ += k;
      if (done_ < at_->iov_len) return;
    }
  }
  const iovec* at_;
  const iovec* end_;
  std::size_t done_ = 0;
};

}  // namespace clan

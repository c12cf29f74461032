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
    while (n > 0) {
      const std::size_t k = step(n);
      if (k > 0) std::memcpy(to, static_cast<const std::byte*>(at_->iov_base) + done_, k);
      to += k;
      n -= k;
      advance(k);
    }
  }

  // Copies `n` bytes into the buffers, which have room for as many. Null buffers discard.
  void scatter(const std::byte* from, std::size_t n) {
    while (n > 0) {
      const std::size_t k = step(n);
      if (k > 0 && at_->iov_base != nullptr) {
        std::memcpy(static_cast<std::byte*>(at_->iov_base) + done_, from, k);
      }
      from += k;
      n -= k;
      advance(k);
    }
  }

 private:
  std::size_t step(std::size_t n) const {
    return at_ == end_ ? n : std::min(n, at_->iov_len - done_);
  }
  void advance(std::size_t k) {
    done_ += k;
    while (at_ != end_ && done_ == at_->iov_len) {
      ++at_;
      done_ = 0;
    }
  }
  const iovec* at_;
  const iovec* end_;
  std::size_t done_ = 0;
};

}  // namespace clan

// TakeOnce: a descriptor or a name that a connection keeps for a while, and the thread that takes
// it gives back.
#pragma once

#include <atomic>
#include <cstdint>

namespace clan::preload {

/// Put there under Migration::moving. Several may want to give it back: one of them gets it.
/// Relaxed: what it names is the kernel's, and nothing of this process is published by it.
template <typename T, T kNone>
class TakeOnce {
 public:
  T get() const { return value_.load(std::memory_order_relaxed); }
  void keep(T value) { value_.store(value, std::memory_order_relaxed); }
  /// kNone: there is none, or another thread has it.
  T take() { return value_.exchange(kNone, std::memory_order_relaxed); }

 private:
  std::atomic<T> value_{kNone};
};

using KeptFd = TakeOnce<int, -1>;
using KeptName = TakeOnce<std::uint64_t, 0>;

}  // namespace clan::preload

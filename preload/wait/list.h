// Memory of epoll sets: dense arrays, and recycled objects.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>

#include "os/spin_lock.h"
#include "os/sys.h"

namespace clan::preload {

inline void* pages(std::size_t bytes) {
  void* memory =
      sys::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

/// A dense array of at most kMost.
template <typename T>
struct List {
  static constexpr std::uint32_t kMost = 1u << 21;
  std::uint32_t count = 0, room = 0;
  T* at = nullptr;
  bool reserve(std::uint32_t least) {
    if (least <= room) return true;
    const std::uint32_t more = std::max(64u, std::bit_ceil(least));
    auto* bigger = more > kMost ? nullptr : static_cast<T*>(pages(more * sizeof(T)));
    if (bigger == nullptr) return false;
    std::copy(at, at + count, bigger);
    release();
    at = bigger;
    room = more;
    return true;
  }
  void release() {
    if (at != nullptr) sys::munmap(at, room * sizeof(T));
    at = nullptr;
    room = 0;
  }
};

/// Recycles sets and interests; their memory is never unmapped.
template <typename T>
class ObjectPool {
 public:
  T* take() {
    const std::lock_guard locked(lock_);
    if (free_ == nullptr) {
      constexpr std::size_t kBytes = 16384;
      auto* memory = static_cast<std::byte*>(pages(kBytes));
      if (memory == nullptr) return nullptr;
      for (std::size_t at = 0; at + sizeof(T) <= kBytes; at += sizeof(T)) put(memory + at);
    }
    Free* memory = free_;
    free_ = memory->next;
    return new (static_cast<void*>(memory)) T;
  }
  void give_back(T* value) {
    value->~T();
    const std::lock_guard locked(lock_);
    put(value);
  }

 private:
  struct Free {
    Free* next;
  };
  static_assert(sizeof(T) >= sizeof(Free));
  static_assert(alignof(T) >= alignof(Free));
  void put(void* memory) { free_ = new (memory) Free{free_}; }
  Free* free_ = nullptr;
  SpinLock lock_;
};

}  // namespace clan::preload

// Memory that a process and its children by fork share, for small objects. Never given back.
// Children take theirs from pages of their own.
#pragma once

#include <cstddef>
#include <new>

#include "os/sys.h"

namespace clan::preload {

template <typename T>
class SharedPages {
 public:
  /// Makes an object. Null: no memory. Not thread-safe.
  T* take() {
    if (page_ == nullptr || used_ == kPerPage) {
      void* memory =
          sys::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) return nullptr;
      page_ = static_cast<T*>(memory);
      used_ = 0;
    }
    return new (page_ + used_++) T;
  }
  /// Leaves the rest of the page to the parent; for the child.
  void forked() { page_ = nullptr; }

 private:
  static constexpr std::size_t kBytes = 4096;
  static constexpr std::size_t kPerPage = kBytes / sizeof(T);
  T* page_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace clan::preload

// Memory that a process and its children by fork share: a few bytes for each of what they have in
// common. Never given back. Children take theirs from pages of their own.
#pragma once

#include <cstddef>
#include <new>

#include "os/sys.h"

namespace clan::preload {

template <typename T>
class SharedPages {
 public:
  /// Null: no memory. Before fork, by one thread at a time.
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
  /// In the child: what is left of the page is the parent's.
  void forked() { page_ = nullptr; }

 private:
  static constexpr std::size_t kBytes = 4096;
  static constexpr std::size_t kPerPage = kBytes / sizeof(T);
  T* page_ = nullptr;
  std::size_t used_ = 0;
};

}  // namespace clan::preload

// Memory for the length of a call. Also for signal handlers and threads with small stacks.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>

#include "os/sys.h"

namespace clan::preload {

class Scratch {
 public:
  static constexpr std::size_t kUsual = 65536;

  explicit Scratch(std::size_t bytes) : bytes_(bytes <= kUsual ? kUsual : bytes) {
    for (auto& kept : pool()) {
      if (bytes_ != kUsual) break;
      // PAIR preload.scratch: its last holder is done with it
      if (kept.load(std::memory_order_relaxed) == nullptr) continue;
      if ((memory_ = kept.exchange(nullptr, std::memory_order_acquire)) != nullptr) return;
    }
    void* memory =
        sys::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory_ = memory == MAP_FAILED ? nullptr : memory;
  }
  ~Scratch() {
    if (memory_ == nullptr) return;
    for (auto& kept : pool()) {
      void* none = nullptr;
      if (bytes_ != kUsual) break;
      // PAIR preload.scratch
      if (kept.compare_exchange_strong(none, memory_, std::memory_order_release,
                                       std::memory_order_relaxed)) {
        return;
      }
    }
    sys::munmap(memory_, bytes_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  explicit operator bool() const { return memory_ != nullptr; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_);
  }

 private:
  static std::array<std::atomic<void*>, 8>& pool() {
    static constinit std::array<std::atomic<void*>, 8> kept{};
    return kept;
  }

  std::size_t bytes_;
  void* memory_ = nullptr;
};

}  // namespace clan::preload

// RingQueue: a queue in a doubling ring that reuses its slots' buffers. Not thread-safe.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace clan::udp {

template <typename T>
class RingQueue {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return slots_[(head_ + i) & (slots_.size() - 1)]; }
  const T& operator[](std::size_t i) const { return slots_[(head_ + i) & (slots_.size() - 1)]; }
  T& front() { return (*this)[0]; }
  T& back() { return (*this)[size_ - 1]; }

  /// A slot at the end, in the state in which its last user left it.
  T& push_back() {
    if (size_ == slots_.size()) grow();
    return (*this)[size_++];
  }
  void push_back(T value) { push_back() = std::move(value); }
  void pop_front() {
    head_ = (head_ + 1) & (slots_.size() - 1);
    --size_;
  }
  void pop_back() { --size_; }
  /// Precondition: empty().
  void release_memory() {
    std::vector<T>().swap(slots_);
    head_ = 0;
  }

 private:
  void grow() {
    std::vector<T> bigger(slots_.empty() ? 8 : 2 * slots_.size());
    for (std::size_t i = 0; i < slots_.size(); ++i) bigger[i] = std::move((*this)[i]);
    slots_ = std::move(bigger);
    head_ = 0;
  }

  std::vector<T> slots_;  ///< a power of two of them
  std::size_t head_ = 0;
  std::size_t size_ = 0;
};

}  // namespace clan::udp

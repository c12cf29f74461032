// Fifo: a queue in one piece of memory, which grows and is used again: a work queue takes no memory
// from the heap for each descriptor. One thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace clan::via {

template <typename T>
class Fifo {
 public:
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](std::size_t i) { return items_[(first_ + i) & (room_ - 1)]; }
  T& front() { return (*this)[0]; }
  /// A new last item, as whatever was in its place left it.
  T& push() {
    if (size_ == room_) grow();
    return (*this)[size_++];
  }
  /// One that is empty begins again where it did: the memory is in the cache.
  void pop() { first_ = --size_ == 0 ? 0 : (first_ + 1) & (room_ - 1); }
  template <typename Goes>
  void erase_if(Goes&& goes) {
    for (std::size_t n = size_; n > 0; --n) {
      T item = std::move(front());
      pop();
      if (!goes(item)) push() = std::move(item);
    }
  }

 private:
  void grow() {
    const std::size_t room = room_ == 0 ? 8 : 2 * room_;
    std::unique_ptr<T[]> items(new T[room]);
    for (std::size_t i = 0; i < size_; ++i) items[i] = std::move((*this)[i]);
    items_ = std::move(items);
    room_ = room;
    first_ = 0;
  }
  std::unique_ptr<T[]> items_;
  std::size_t room_ = 0, first_ = 0, size_ = 0;
};

}  // namespace clan::via

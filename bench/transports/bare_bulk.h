// BareBulk: what two cores and shared memory allow when there is no protocol at all, for large
// messages: 16 slots of 64 KB, copied in and copied out. As in bare_transport.h, nothing here is
// meant to be used.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <string>

#include "support/clock.h"
#include "support/shared_memory.h"
#include "transports/transport.h"

namespace clan::bench {

struct BareBulkMemory {
  static constexpr std::uint64_t kSlots = 16;
  static constexpr std::size_t kSlotBytes = 65536;
  struct alignas(64) Flag {
    std::atomic<std::uint64_t> filled{0};
    std::atomic<std::uint64_t> bytes{0};
  };
  std::array<Flag, kSlots> flags;
  alignas(64) std::atomic<std::uint64_t> head{0};
  alignas(4096) std::array<std::array<std::byte, kSlotBytes>, kSlots> data;
};

class BareBulkEnd {
 public:
  BareBulkEnd(BareBulkMemory* out, BareBulkMemory* in) : out_(out), in_(in) {}

  bool send(std::span<const std::byte> message) {
    while (!message.empty()) {
      const std::size_t n = std::min(message.size(), BareBulkMemory::kSlotBytes);
      Spinner spin;
      // PAIR bare.bulk.head: sees the slots recv gave back
      while (tail_ - out_->head.load(std::memory_order_acquire) == BareBulkMemory::kSlots) spin();
      const std::uint64_t i = tail_ % BareBulkMemory::kSlots;
      std::memcpy(out_->data[i].data(), message.data(), n);
      out_->flags[i].bytes.store(n, std::memory_order_relaxed);  // published with the flag
      // PAIR bare.bulk.flag: publishes the slot to recv
      out_->flags[i].filled.store(++tail_, std::memory_order_release);
      message = message.subspan(n);
    }
    return true;
  }
  bool recv(std::span<std::byte> message) {
    while (!message.empty()) {
      const std::uint64_t i = head_ % BareBulkMemory::kSlots;
      Spinner spin;
      // PAIR bare.bulk.flag: sees the slot send filled
      while (in_->flags[i].filled.load(std::memory_order_acquire) != head_ + 1) spin();
      const std::size_t n = in_->flags[i].bytes.load(std::memory_order_relaxed);
      if (n > message.size()) return false;
      std::memcpy(message.data(), in_->data[i].data(), n);
      // PAIR bare.bulk.head: publishes the emptied slot to send
      in_->head.store(++head_, std::memory_order_release);
      message = message.subspan(n);
    }
    return true;
  }
  bool flush() { return true; }

 private:
  BareBulkMemory* out_;
  BareBulkMemory* in_;
  std::uint64_t tail_ = 0;
  std::uint64_t head_ = 0;
};

class BareBulk {
 public:
  std::string name() const { return "bare"; }
  std::string prepare(std::size_t) {
    memory_ = SharedMemory(2 * sizeof(BareBulkMemory));
    if (!memory_) return "no shared memory";
    for (int i = 0; i < 2; ++i) {
      rings_[i] = new (memory_.data() + i * sizeof(BareBulkMemory)) BareBulkMemory;
    }
    return "";
  }
  std::optional<BareBulkEnd> open(Side side) {
    const int out = side == Side::kClient ? 0 : 1;
    return BareBulkEnd(rings_[out], rings_[1 - out]);
  }

 private:
  SharedMemory memory_;
  BareBulkMemory* rings_[2] = {};
};

}  // namespace clan::bench

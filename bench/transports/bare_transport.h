// The bare bounds: what two cores and shared memory allow when there is no protocol at all. No
// peer death, no trust boundary, no sleeping, one producer and one consumer. CLAN is measured
// against these; nothing here is meant to be used.
//
//   BareSlot   one slot per direction, the flag beside the data: the latency bound
//              ┌ flag ┬ data … ┐      size ≤ 56: flag and data are one cache line
//   BareRing   slots of fixed size, each with its flag in its own line: the message-rate bound
//              ┌ data ┬ flag ┐┌ data ┬ flag ┐…   the consumer's index moves once per quarter ring
//              with kAhead > 0 the producer asks for the lines of the slot that many places ahead
//              before it needs them: the misses of many slots overlap
#pragma once

#include <atomic>
#include <cstring>
#include <new>

#include "support/clock.h"
#include "support/owned.h"
#include "transports/transport.h"

namespace clan::bench {

/// How many slots ahead a prefetching BareRing looks; 4 and 16 did equally well where tried.
inline constexpr std::size_t kPrefetchAhead = 16;

/// Memory of each direction, the client's first.
template <class Memory>
class BareDirections {
 protected:
  std::string make() {
    memory_ = SharedMemory(2 * sizeof(Memory));
    if (!memory_) return "no shared memory";
    for (int i = 0; i < 2; ++i) both_[i] = new (memory_.data() + i * sizeof(Memory)) Memory;
    return "";
  }
  Memory* out(Side side) const { return both_[side == Side::kClient ? 0 : 1]; }
  Memory* in(Side side) const { return both_[side == Side::kClient ? 1 : 0]; }

 private:
  SharedMemory memory_;
  Memory* both_[2] = {};
};

class BareSlotEnd {
 public:
  BareSlotEnd(std::byte* out, std::byte* in) : out_(out), in_(in) {}

  bool send(std::span<const std::byte> message) {
    std::memcpy(out_ + sizeof(Flag), message.data(), message.size());
    // PAIR bare.slot: publishes the message to BareSlotEnd::recv
    flag(out_).store(++sent_, std::memory_order_release);
    return true;
  }
  bool recv(std::span<std::byte> message) {
    ++received_;
    Spinner spin;
    // PAIR bare.slot: sees the message send published
    while (flag(in_).load(std::memory_order_acquire) != received_) spin();
    std::memcpy(message.data(), in_ + sizeof(Flag), message.size());
    return true;
  }

 private:
  using Flag = std::atomic<std::uint64_t>;
  static Flag& flag(std::byte* slot) { return *std::launder(reinterpret_cast<Flag*>(slot)); }

  std::byte* out_;
  std::byte* in_;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
};

/// Ping-pong only: a slot is free again when the answer came.
class BareSlot {
 public:
  std::string name() const { return "bare"; }
  std::string prepare(std::size_t bytes) {
    stride_ = (bytes + 64 + 4095) / 4096 * 4096;
    memory_ = SharedMemory(2 * stride_);
    return memory_ ? "" : "no shared memory";
  }
  std::optional<BareSlotEnd> open(Side side) {
    std::byte* a = memory_.data();
    std::byte* b = a + stride_;
    return side == Side::kClient ? BareSlotEnd(a, b) : BareSlotEnd(b, a);
  }

 private:
  SharedMemory memory_;
  std::size_t stride_ = 0;
};

/// Messages of exactly kPayload bytes in slots of kSlot bytes.
template <std::size_t kSlot, std::size_t kPayload>
struct BareRingMemory {
  static constexpr std::uint64_t kSlots = 1024;
  struct alignas(64) Slot {
    std::array<std::byte, kPayload> data;
    std::array<std::byte, kSlot - kPayload - sizeof(std::uint64_t)> unused;
    std::atomic<std::uint64_t> flag;
  };
  static_assert(sizeof(Slot) == kSlot);
  alignas(64) std::atomic<std::uint64_t> head{0};  // written by the consumer, in batches
  alignas(64) std::array<Slot, kSlots> slots{};
};

template <std::size_t kSlot, std::size_t kPayload, std::size_t kAhead>
class BareRingEnd {
 public:
  using Memory = BareRingMemory<kSlot, kPayload>;
  BareRingEnd(Memory* out, Memory* in) : out_(out), in_(in) {}

  bool send(std::span<const std::byte> message) {
    if (tail_ - known_head_ == Memory::kSlots) {
      Spinner spin;
      // PAIR bare.ring.head: sees the slots recv gave back
      while (tail_ - (known_head_ = out_->head.load(std::memory_order_acquire)) == Memory::kSlots) {
        spin();
      }
    }
    if constexpr (kAhead > 0) {
      const auto* next =
          reinterpret_cast<const std::byte*>(&out_->slots[(tail_ + kAhead) % Memory::kSlots]);
      for (std::size_t i = 0; i < kSlot; i += 64)
        asm volatile("prefetchw %0" : : "m"(*reinterpret_cast<const char*>(next + i)));
    }
    auto& slot = out_->slots[tail_ % Memory::kSlots];
    std::memcpy(slot.data.data(), message.data(), kPayload);
    // PAIR bare.ring.flag: publishes the slot to recv
    slot.flag.store(++tail_, std::memory_order_release);
    return true;
  }
  bool recv(std::span<std::byte> message) {
    auto& slot = in_->slots[head_ % Memory::kSlots];
    ++head_;
    Spinner spin;
    // PAIR bare.ring.flag: sees the slot send filled
    while (slot.flag.load(std::memory_order_acquire) != head_) spin();
    std::memcpy(message.data(), slot.data.data(), kPayload);
    // PAIR bare.ring.head: publishes emptied slots to send
    if (head_ % (Memory::kSlots / 4) == 0) in_->head.store(head_, std::memory_order_release);
    return true;
  }

 private:
  Memory* out_;
  Memory* in_;
  std::uint64_t tail_ = 0;
  std::uint64_t known_head_ = 0;
  std::uint64_t head_ = 0;
};

template <std::size_t kSlot, std::size_t kPayload, std::size_t kAhead = 0>
class BareRing : public BareDirections<BareRingMemory<kSlot, kPayload>> {
 public:
  std::string name() const { return kAhead > 0 ? "bare, prefetch" : "bare"; }
  std::string prepare(std::size_t bytes) {
    return bytes == kPayload ? this->make() : "this ring is built for another size";
  }
  std::optional<BareRingEnd<kSlot, kPayload, kAhead>> open(Side side) {
    return BareRingEnd<kSlot, kPayload, kAhead>(this->out(side), this->in(side));
  }
};

}  // namespace clan::bench

// The memory an application and the NIC driver share for RDMA: a ring of requests one way, a ring
// of completions the other way. Lives on any 64-byte aligned span; holds offsets only, no pointers
// of its own (`local` in a request is the application's address, opaque here).
//
//   RdmaRingApp     the application's end (rdma_ring_app.h). One thread posts; one thread (it may
//   be
//                   another one) reaps. Posting and reaping are done at user level.
//   RdmaRingDriver  the driver's end (rdma_ring_driver.h), under the driver's lock (see
//                   rdma_scheduler.h).
//
//   offset 0    line 0  constant after create    magic, version, capacities
//          64   line 1  written by application   request_tail
//          128  line 2  written by driver        request_head
//          192  line 3  written by driver        completion_tail
//          256  line 4  written by application   completion_head
//          320  line 5  written by driver        idle_epoch, state (rarely written)
//          384  request slots     capacity x 64 bytes, written by application
//          ...  completion slots  completion_capacity x 32 bytes, written by driver
//
// head = consumer's index, tail = producer's. Indices are 64 bits wide, only grow, and are masked
// when used; a ring is empty when head == tail and may be filled to the last slot.
//
// Trust. The driver keeps indices and capacities in private memory and never reads a line it
// writes. What it reads (request_tail, completion_head, request slots) is input: loaded once,
// checked, then used from the private copy. An index that makes no sense means the application is
// broken: Take::kCorrupt, and nothing more is taken. Slot words are atomics read with relaxed
// loads, so that an application scribbling over a slot being read gets nonsense checked and
// refused, not a data race.
//
// Completions cannot overflow. Every accepted request is answered once, so the slots in use or
// promised are request_head - completion_head; the driver takes a request only while that is below
// completion_capacity. The application's end posts only while request_tail - completion_head is
// below it, so an application that uses this class never finds the driver waiting for it to reap.
//
// Doorbell. The driver publishes an odd idle_epoch when it has found the ring empty and an even one
// when it has taken the queue up again. post() says whether the driver must be told, which it must
// be once per idle period:
//
//   application                          driver
//   request_tail = t     (seq_cst)       idle_epoch = odd      (seq_cst)
//   e = idle_epoch       (seq_cst)       t = request_tail      (seq_cst)
//
// Of the two stores one is first, and the other side's load sees it: either the application sees
// the driver idle, or the driver sees the request. A request may also be served, and the driver be
// idle again, before its poster looks: that doorbell finds nothing. So answering a doorbell ends
// the idle period whatever it finds; otherwise the next request would not ring.
//
// A crash of the application before request_tail is stored leaves no trace; after it, the request
// is served if the driver is awake, else it stays until the queue is detached. A crash of the
// driver before completion_tail is stored loses that completion: the rings die with the driver.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace clan::nic {

enum class RdmaRingState : std::uint32_t {
  kOpen = 0,
  kBroken = 1,  // the driver found an impossible index and takes nothing more
  kClosed = 2,  // detached
};

/// One request. word 0: op (bits 0-7), priority (8-15), more (16), zero (17-31), remote (32-63);
/// word 1: local; 2: remote_offset; 3: length; 4: cookie; 5-7 unused.
struct alignas(64) RdmaRequestSlot {
  std::atomic<std::uint64_t> word[8];
};

/// One completion. word 0: cookie; 1: bytes; 2: status; 3 unused.
struct alignas(32) RdmaCompletionSlot {
  std::atomic<std::uint64_t> word[4];
};

struct RdmaRingHeader {
  // line 0: constant after create
  alignas(64) std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t capacity;
  std::uint32_t completion_capacity;
  // line 1: written by the application
  alignas(64) std::atomic<std::uint64_t> request_tail;
  // line 2: written by the driver
  alignas(64) std::atomic<std::uint64_t> request_head;
  // line 3: written by the driver
  alignas(64) std::atomic<std::uint64_t> completion_tail;
  // line 4: written by the application
  alignas(64) std::atomic<std::uint64_t> completion_head;
  // line 5: written by the driver
  alignas(64) std::atomic<std::uint64_t> idle_epoch;
  std::atomic<std::uint32_t> state;
};

static_assert(sizeof(RdmaRequestSlot) == 64 && std::is_standard_layout_v<RdmaRequestSlot>);
static_assert(sizeof(RdmaCompletionSlot) == 32 && std::is_standard_layout_v<RdmaCompletionSlot>);
static_assert(std::is_standard_layout_v<RdmaRingHeader>);
static_assert(std::is_trivially_destructible_v<RdmaRingHeader>);
static_assert(offsetof(RdmaRingHeader, request_tail) == 64);
static_assert(offsetof(RdmaRingHeader, request_head) == 128);
static_assert(offsetof(RdmaRingHeader, completion_tail) == 192);
static_assert(offsetof(RdmaRingHeader, completion_head) == 256);
static_assert(offsetof(RdmaRingHeader, idle_epoch) == 320);
static_assert(sizeof(RdmaRingHeader) == 384);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// Sizes, and the checks that both ends share.
struct RdmaRing {
  static constexpr std::uint64_t kMagic = 0x434c414e52444d41;  // "CLANRDMA"
  static constexpr std::uint32_t kVersion = 1;
  static constexpr std::uint32_t kMaxCapacity = 1u << 16;
  static constexpr std::size_t kAlignment = 64;

  static constexpr bool valid_capacities(std::uint64_t capacity, std::uint64_t completions) {
    return std::has_single_bit(capacity) && std::has_single_bit(completions) &&
           capacity <= completions && completions <= kMaxCapacity;
  }

  /// Bytes a ring of these (valid) capacities takes.
  static constexpr std::size_t bytes_needed(std::uint32_t capacity, std::uint32_t completions) {
    return sizeof(RdmaRingHeader) + std::size_t{capacity} * sizeof(RdmaRequestSlot) +
           std::size_t{completions} * sizeof(RdmaCompletionSlot);
  }
  static constexpr std::size_t bytes_needed(std::uint32_t capacity) {
    return bytes_needed(capacity, capacity);
  }
};

namespace detail {

/// Where everything is. Private to each end; filled from values that end trusts.
struct RdmaRingView {
  RdmaRingHeader* header = nullptr;
  RdmaRequestSlot* requests = nullptr;
  RdmaCompletionSlot* completions = nullptr;
  std::uint32_t capacity = 0;
  std::uint32_t completion_capacity = 0;

  static RdmaRingView at(std::byte* base, std::uint32_t capacity, std::uint32_t completions) {
    std::byte* slots = base + sizeof(RdmaRingHeader);
    return {reinterpret_cast<RdmaRingHeader*>(base), reinterpret_cast<RdmaRequestSlot*>(slots),
            reinterpret_cast<RdmaCompletionSlot*>(slots + capacity * sizeof(RdmaRequestSlot)),
            capacity, completions};
  }
  RdmaRequestSlot& request(std::uint64_t i) const { return requests[i & (capacity - 1)]; }
  RdmaCompletionSlot& completion(std::uint64_t i) const {
    return completions[i & (completion_capacity - 1)];
  }
};

inline bool aligned_for_rdma_ring(std::span<std::byte> memory) {
  return reinterpret_cast<std::uintptr_t>(memory.data()) % RdmaRing::kAlignment == 0;
}

}  // namespace detail

}  // namespace clan::nic

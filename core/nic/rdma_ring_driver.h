// RdmaRingDriver: the driver's end of a request ring (nic/rdma_ring.h), under the driver's lock.
#pragma once

#include <clan/rdma_request.h>
#include <clan/result.h>

#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <span>

#include "nic/rdma_ring.h"

namespace clan::nic {

/// A request out of the ring. `error` is EINVAL if a field is out of range; then only the cookie,
/// `more` and a priority (0 when that was the bad field) mean anything.
struct RdmaTaken {
  RdmaRequest request;
  int error = 0;
};

/// The driver's end.
class RdmaRingDriver {
 public:
  enum class Take {
    kTaken,
    kEmpty,
    kNoCompletionSlot,  // the application must reap first
    kCorrupt,           // an index is impossible
  };

  /// Lays an empty ring out in `memory`. The memory must outlive both ends.
  static Result<RdmaRingDriver> create(std::span<std::byte> memory, std::uint32_t capacity,
                                       std::uint32_t completion_capacity) {
    if (!RdmaRing::valid_capacities(capacity, completion_capacity))
      return Error{EINVAL, "RDMA ring capacities"};
    if (memory.size() < RdmaRing::bytes_needed(capacity, completion_capacity) ||
        !detail::aligned_for_rdma_ring(memory))
      return Error{EINVAL, "RDMA ring memory"};
    auto view = detail::RdmaRingView::at(memory.data(), capacity, completion_capacity);
    new (view.header) RdmaRingHeader{};
    for (std::uint32_t i = 0; i < capacity; ++i) new (&view.requests[i]) RdmaRequestSlot{};
    for (std::uint32_t i = 0; i < completion_capacity; ++i)
      new (&view.completions[i]) RdmaCompletionSlot{};
    view.header->version = RdmaRing::kVersion;
    view.header->capacity = capacity;
    view.header->completion_capacity = completion_capacity;
    view.header->idle_epoch.store(1, std::memory_order_relaxed);  // no other end exists yet
    view.header->magic = RdmaRing::kMagic;
    return RdmaRingDriver(view);
  }
  static Result<RdmaRingDriver> create(std::span<std::byte> memory, std::uint32_t capacity) {
    return create(memory, capacity, capacity);
  }

  RdmaRingDriver(RdmaRingDriver&&) = default;
  RdmaRingDriver& operator=(RdmaRingDriver&&) = default;
  RdmaRingDriver(const RdmaRingDriver&) = delete;
  RdmaRingDriver& operator=(const RdmaRingDriver&) = delete;

  /// Takes the next request, reserving the slot for its completion.
  [[nodiscard]] Take take(RdmaTaken* out) {
    // PAIR rdma.req.tail: sees the request slots
    const Take ready = look(std::memory_order_acquire);
    if (ready != Take::kTaken) return ready;
    *out = decode(view_.request(head_));
    ++head_;
    // PAIR rdma.req.head: publishes that slots below head have been read, to RdmaRingApp::post
    view_.header->request_head.store(head_, std::memory_order_release);
    return Take::kTaken;
  }

  /// Answers the oldest unanswered request. The slot was reserved by take().
  void complete(const RdmaCompletion& c) {
    assert(completion_tail_ != head_);
    RdmaCompletionSlot& slot = view_.completion(completion_tail_);
    // relaxed: completion_tail below publishes these
    slot.word[0].store(c.cookie, std::memory_order_relaxed);
    slot.word[1].store(c.bytes, std::memory_order_relaxed);
    slot.word[2].store(static_cast<std::uint32_t>(c.status), std::memory_order_relaxed);
    ++completion_tail_;
    // PAIR rdma.comp.tail: publishes completion slots below tail to RdmaRingApp::reap
    view_.header->completion_tail.store(completion_tail_, std::memory_order_release);
  }

  /// Tells the application that it must ring for its next request. False (and not idle) if
  /// something to take, or a corrupt index, turned up meanwhile.
  [[nodiscard]] bool go_idle() {
    if (idle()) return true;
    ++idle_epoch_;
    // PAIR rdma.idle: publishes that we stop looking, to RdmaRingApp::post (seq_cst: see the top)
    view_.header->idle_epoch.store(idle_epoch_, std::memory_order_seq_cst);
    const Take ready = look(std::memory_order_seq_cst);
    if (ready == Take::kEmpty || ready == Take::kNoCompletionSlot) return true;
    leave_idle();
    return false;
  }

  /// A doorbell is being answered (whether or not anything is there), or go_idle found work.
  void leave_idle() {
    if (!idle()) return;
    ++idle_epoch_;
    // PAIR rdma.idle: publishes that we look again; late news costs a spare doorbell
    view_.header->idle_epoch.store(idle_epoch_, std::memory_order_release);
  }

  bool idle() const { return (idle_epoch_ & 1) != 0; }

  void publish_state(RdmaRingState s) {
    // PAIR rdma.state: publishes the end of service to RdmaRingApp::state
    view_.header->state.store(static_cast<std::uint32_t>(s), std::memory_order_release);
  }

  std::uint64_t taken() const { return head_; }
  std::uint64_t completed() const { return completion_tail_; }
  std::uint32_t capacity() const { return view_.capacity; }
  std::uint32_t completion_capacity() const { return view_.completion_capacity; }

 private:
  explicit RdmaRingDriver(const detail::RdmaRingView& view) : view_(view) {}

  /// What take() would say. Reads an index only when the private copy says there is nothing left;
  /// a private copy, once checked, stands, whatever happens to the shared word after.
  Take look(std::memory_order tail_order) {
    if (known_tail_ == head_) {
      // PAIR rdma.req.tail: sees the slots that post() published
      const std::uint64_t tail = view_.header->request_tail.load(tail_order);
      if (tail - head_ > view_.capacity) return Take::kCorrupt;
      known_tail_ = tail;
      if (tail == head_) return Take::kEmpty;
    }
    if (head_ - known_completion_head_ == view_.completion_capacity) {
      // PAIR rdma.comp.head: sees which completion slots reap() has finished with
      const std::uint64_t h = view_.header->completion_head.load(std::memory_order_acquire);
      if (h - known_completion_head_ > completion_tail_ - known_completion_head_)
        return Take::kCorrupt;
      if (h == known_completion_head_) return Take::kNoCompletionSlot;
      known_completion_head_ = h;
    }
    return Take::kTaken;
  }

  static RdmaTaken decode(const RdmaRequestSlot& slot) {
    // relaxed: request_tail has published them; and one load each, since it may change under us
    const std::uint64_t head = slot.word[0].load(std::memory_order_relaxed);
    const std::uint64_t local = slot.word[1].load(std::memory_order_relaxed);
    const std::uint64_t offset = slot.word[2].load(std::memory_order_relaxed);
    const std::uint64_t length = slot.word[3].load(std::memory_order_relaxed);
    const auto op = static_cast<std::uint8_t>(head);
    const auto priority = static_cast<std::uint8_t>(head >> 8);

    RdmaTaken t;
    t.request.op = static_cast<RdmaOp>(op);
    t.request.priority = priority < kRdmaPriorities ? priority : 0;
    t.request.more = (head & kMoreBit) != 0;
    t.request.remote = static_cast<std::uint32_t>(head >> 32);
    t.request.local = reinterpret_cast<void*>(static_cast<std::uintptr_t>(local));
    t.request.remote_offset = offset;
    t.request.length = length;
    t.request.cookie = slot.word[4].load(std::memory_order_relaxed);
    if (op > static_cast<std::uint8_t>(RdmaOp::kRead) || priority >= kRdmaPriorities ||
        (head & kZeroBits) != 0 || length > std::numeric_limits<std::uint64_t>::max() - offset ||
        local > std::numeric_limits<std::uintptr_t>::max() ||
        length > std::numeric_limits<std::uintptr_t>::max() - local)
      t.error = EINVAL;
    return t;
  }

  static constexpr std::uint64_t kMoreBit = 1ull << 16;
  static constexpr std::uint64_t kZeroBits = 0xfffeull << 16;

  detail::RdmaRingView view_;
  std::uint64_t head_ = 0;                   // requests taken
  std::uint64_t known_tail_ = 0;             // request_tail as last read and checked
  std::uint64_t completion_tail_ = 0;        // completions published
  std::uint64_t known_completion_head_ = 0;  // completion_head as last read and checked
  std::uint64_t idle_epoch_ = 1;
};

}  // namespace clan::nic

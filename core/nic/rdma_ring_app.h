// RdmaRingApp: the application's end of a request ring (nic/rdma_ring.h).
#pragma once

#include <clan/rdma_request.h>
#include <clan/result.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nic/rdma_ring.h"

namespace clan::nic {

/// The application's end. post() and post_group() belong to one thread, reap() to one thread.
class RdmaRingApp {
 public:
  /// Opens a ring that the driver has created in `memory`. Opening again after the previous end
  /// has gone continues where that one stopped.
  static Result<RdmaRingApp> open(std::span<std::byte> memory) {
    if (memory.size() < sizeof(RdmaRingHeader) || !detail::aligned_for_rdma_ring(memory))
      return Error{EINVAL, "RDMA ring memory"};
    auto* h = reinterpret_cast<RdmaRingHeader*>(memory.data());
    if (h->magic != RdmaRing::kMagic || h->version != RdmaRing::kVersion)
      return Error{EPROTO, "RDMA ring header"};
    const std::uint32_t capacity = h->capacity;
    const std::uint32_t completions = h->completion_capacity;
    if (!RdmaRing::valid_capacities(capacity, completions) ||
        memory.size() < RdmaRing::bytes_needed(capacity, completions))
      return Error{EPROTO, "RDMA ring capacities"};
    return RdmaRingApp(detail::RdmaRingView::at(memory.data(), capacity, completions));
  }

  RdmaRingApp(RdmaRingApp&&) = default;
  RdmaRingApp& operator=(RdmaRingApp&&) = default;
  RdmaRingApp(const RdmaRingApp&) = delete;
  RdmaRingApp& operator=(const RdmaRingApp&) = delete;

  /// Posts one request. True: the driver sleeps and must be told (RdmaScheduler::activate).
  /// EAGAIN: full, reap completions or wait. EPROTO: the driver gave this queue up. EPIPE:
  /// detached. What is wrong inside a request is for the driver to find: it comes as a completion.
  Result<bool> post(const RdmaRequest& r) { return post(std::span(&r, 1)); }

  /// Posts all of them, with their own `more`, or none. EMSGSIZE: more than the ring can ever hold.
  Result<bool> post(std::span<const RdmaRequest> requests) {
    if (Status s = room_for(requests.size()); !s.ok()) return s.error();
    for (std::size_t i = 0; i < requests.size(); ++i)
      encode(requests[i], requests[i].more, view_.request(tail_ + i));
    return publish(requests.size());
  }

  /// The same, as one logical message: `more` is set on all but the last.
  Result<bool> post_group(std::span<const RdmaRequest> requests) {
    if (Status s = room_for(requests.size()); !s.ok()) return s.error();
    for (std::size_t i = 0; i < requests.size(); ++i)
      encode(requests[i], i + 1 < requests.size(), view_.request(tail_ + i));
    return publish(requests.size());
  }

  /// Takes completions, oldest first, and says how many. EPROTO: the index is impossible.
  Result<std::size_t> reap(std::span<RdmaCompletion> out) {
    // PAIR rdma.comp.tail: sees the completion slots that complete() published
    const std::uint64_t tail = view_.header->completion_tail.load(std::memory_order_acquire);
    const std::uint64_t ready = tail - completion_head_;
    if (ready > view_.completion_capacity) return Error{EPROTO, "RDMA completion index"};
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(ready, out.size()));
    for (std::size_t i = 0; i < n; ++i) {
      const RdmaCompletionSlot& slot = view_.completion(completion_head_ + i);
      // relaxed: completion_tail has published them
      out[i].cookie = slot.word[0].load(std::memory_order_relaxed);
      out[i].bytes = slot.word[1].load(std::memory_order_relaxed);
      out[i].status = static_cast<std::int32_t>(slot.word[2].load(std::memory_order_relaxed));
    }
    if (n != 0) {
      completion_head_ += n;
      // PAIR rdma.comp.head: publishes slots we have read, to RdmaRingDriver::look and to post
      view_.header->completion_head.store(completion_head_, std::memory_order_release);
    }
    return n;
  }

  RdmaRingState state() const {
    // PAIR rdma.state: sees the end of service
    return static_cast<RdmaRingState>(view_.header->state.load(std::memory_order_acquire));
  }

  std::uint32_t capacity() const { return view_.capacity; }
  std::uint32_t completion_capacity() const { return view_.completion_capacity; }

 private:
  explicit RdmaRingApp(const detail::RdmaRingView& view)
      // relaxed: both are ours; the handing over of the ring has synchronised
      : view_(view),
        tail_(view.header->request_tail.load(std::memory_order_relaxed)),
        completion_head_(view.header->completion_head.load(std::memory_order_relaxed)) {}

  Status room_for(std::uint64_t n) {
    if (n == 0) return Error{EINVAL, "post no RDMA request"};
    if (n > view_.capacity) return Error{EMSGSIZE, "RDMA group larger than its ring"};
    if (const RdmaRingState s = state(); s != RdmaRingState::kOpen)
      return Error{s == RdmaRingState::kClosed ? EPIPE : EPROTO, "RDMA queue"};
    // PAIR rdma.comp.head: sees what reap(), perhaps in another thread, has made room for
    const std::uint64_t reaped = view_.header->completion_head.load(std::memory_order_acquire);
    if (tail_ - reaped + n > view_.completion_capacity)
      return Error{EAGAIN, "RDMA completions to be reaped"};
    if (tail_ - known_head_ + n > view_.capacity) {
      // PAIR rdma.req.head: sees which slots take() has finished with
      known_head_ = view_.header->request_head.load(std::memory_order_acquire);
      if (tail_ - known_head_ > view_.capacity) return Error{EPROTO, "RDMA request index"};
      if (tail_ - known_head_ + n > view_.capacity) return Error{EAGAIN, "RDMA ring full"};
    }
    return {};
  }

  static void encode(const RdmaRequest& r, bool more, RdmaRequestSlot& slot) {
    // relaxed: request_tail publishes these
    slot.word[0].store(static_cast<std::uint64_t>(r.op) | std::uint64_t{r.priority} << 8 |
                           std::uint64_t{more} << 16 | std::uint64_t{r.remote} << 32,
                       std::memory_order_relaxed);
    slot.word[1].store(reinterpret_cast<std::uintptr_t>(r.local), std::memory_order_relaxed);
    slot.word[2].store(r.remote_offset, std::memory_order_relaxed);
    slot.word[3].store(r.length, std::memory_order_relaxed);
    slot.word[4].store(r.cookie, std::memory_order_relaxed);
  }

  bool publish(std::uint64_t n) {
    tail_ += n;
    // PAIR rdma.req.tail: publishes slots below tail to RdmaRingDriver::look (seq_cst: see the top)
    view_.header->request_tail.store(tail_, std::memory_order_seq_cst);
    // PAIR rdma.idle: sees that the driver has stopped looking (seq_cst: see the top)
    const std::uint64_t epoch = view_.header->idle_epoch.load(std::memory_order_seq_cst);
    if ((epoch & 1) == 0 || epoch == rung_epoch_) return false;
    rung_epoch_ = epoch;
    return true;
  }

  detail::RdmaRingView view_;
  // the posting thread's
  std::uint64_t tail_ = 0;
  std::uint64_t known_head_ = 0;
  std::uint64_t rung_epoch_ = 0;
  // the reaping thread's
  std::uint64_t completion_head_ = 0;
};

}  // namespace clan::nic

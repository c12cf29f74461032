// RdmaRing: one RDMA queue's requests and completions, between three threads of a process.
//
//   poster --requests--> driver, under its mutex --completions--> reaper
//      ^                                                             |
//      +---------------------- how many were reaped -----------------+
//
// Positions grow and are masked. A request is posted only while fewer than `depth` are posted and
// not reaped: so a completion has room, and a slot was read long before it is written again.
#pragma once

#include <clan/detail/words.h>
#include <clan/rdma_request.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace clan::nic {

class RdmaRing {
 public:
  static constexpr bool valid_depth(std::uint32_t depth) {
    return std::has_single_bit(depth) && depth <= 1u << 16;
  }
  explicit RdmaRing(std::uint32_t depth)
      : mask_(depth - 1), requests_(depth), completions_(depth) {}

  /// Posts one request. False: full until completions are reaped. The driver checks its contents.
  [[nodiscard]] bool post(const RdmaRequest& request) {
    // relaxed: this thread's own word
    const std::uint64_t at = posted_.load(std::memory_order_relaxed);
    // PAIR rdma.reaped: the slots of what has been reaped are free
    if (at - words::load_acquire(reaped_) > mask_) return false;
    requests_[at & mask_] = request;
    words::store_release(posted_, at + 1);  // PAIR rdma.posted: publishes the request
    return true;
  }

  /// Takes the oldest request that has not been taken. False: there is none.
  [[nodiscard]] bool take(RdmaRequest* out) {
    if (taken_ == words::load_acquire(posted_)) return false;  // PAIR rdma.posted: sees the request
    *out = requests_[taken_++ & mask_];
    return true;
  }
  /// Answers the oldest request that was taken and has no answer.
  void complete(const RdmaCompletion& completion) {
    // relaxed: written under the driver's mutex
    const std::uint64_t at = completed_.load(std::memory_order_relaxed);
    completions_[at & mask_] = completion;
    words::store_release(completed_, at + 1);  // PAIR rdma.completed: publishes the completion
  }

  /// Takes completions, oldest first, and says how many.
  std::size_t reap(std::span<RdmaCompletion> out) {
    // relaxed: this thread's own word
    const std::uint64_t from = reaped_.load(std::memory_order_relaxed);
    // PAIR rdma.completed: sees the completions
    const std::uint64_t ready = words::load_acquire(completed_) - from;
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(ready, out.size()));
    if (n == 0) return 0;
    for (std::size_t i = 0; i < n; ++i) out[i] = completions_[(from + i) & mask_];
    words::store_release(reaped_, from + n);  // PAIR rdma.reaped: the completions have been read
    return n;
  }

 private:
  const std::uint64_t mask_;
  std::vector<RdmaRequest> requests_;
  std::vector<RdmaCompletion> completions_;
  alignas(64) std::atomic<std::uint64_t> posted_{0};
  alignas(64) std::atomic<std::uint64_t> completed_{0};
  std::uint64_t taken_ = 0;  ///< under the driver's mutex
  alignas(64) std::atomic<std::uint64_t> reaped_{0};
};

}  // namespace clan::nic

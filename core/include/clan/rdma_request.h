// A request to the RDMA engine and its completion: two plain structures. A request names local
// memory by address, remote memory by aperture and offset. It goes through its RDMA queue's ring;
// each gets exactly one completion, in the order posted on that queue.
#pragma once

#include <cstdint>
#include <type_traits>

namespace clan {

enum class RdmaOp : std::uint8_t {
  kWrite = 0,  // local memory -> remote aperture
  kRead = 1,   // remote aperture -> local memory
};

/// Priorities are 0 to kRdmaPriorities - 1; the highest is the most urgent.
inline constexpr unsigned kRdmaPriorities = 8;

struct RdmaRequest {
  RdmaOp op = RdmaOp::kWrite;

  /// Decides between queues, never within one: a queue is first in, first out, with the priority of
  /// its oldest unfinished request. Urgent traffic wants a queue of its own.
  std::uint8_t priority = 0;

  /// The queue's next request belongs to the same message (a group ends with the first request
  /// whose `more` is false). A group runs at its first request's priority, and other queues of that
  /// priority do not run in between, unless it exceeds the scheduler's group quantum, a page of it
  /// is not resident, its queue's window is full, or its next request is not posted yet (post it in
  /// one call). Each member has its own completion; one that fails does not stop the others.
  bool more = false;

  void* local = nullptr;
  std::uint64_t remote_offset = 0;
  std::uint64_t length = 0;  // 0 is allowed: checked, moves nothing, completes
  std::uint32_t remote = 0;  // handle of an imported aperture
  std::uint64_t cookie = 0;  // the caller's; comes back in the completion
};

struct RdmaCompletion {
  std::uint64_t cookie = 0;
  std::int32_t status = 0;  // 0 or an errno value
  /// Bytes known to have arrived; all when status is 0. After a failure not always the first ones.
  std::uint64_t bytes = 0;
};

static_assert(std::is_trivially_copyable_v<RdmaRequest>);
static_assert(std::is_trivially_copyable_v<RdmaCompletion>);

}  // namespace clan

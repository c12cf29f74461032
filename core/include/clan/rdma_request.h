// What an application asks of the RDMA engine, and what it hears back: two plain structures.
//
// A request names local memory by its address, remote memory by an imported aperture and an offset
// in it. Requests go through a ring per application (one ring = one RDMA queue) and are answered by
// exactly one completion each, in the order they were posted on that queue.
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

  /// Decides between queues, never within one: a queue is first in, first out, and competes with
  /// the priority of its oldest unfinished request. Urgent traffic wants a queue of its own.
  std::uint8_t priority = 0;

  /// The next request of this queue belongs to the same logical message (a group ends with the
  /// first request whose `more` is false). The group runs at the priority of its first request and
  /// requests of other queues of that priority do not run in between. Exceptions, so that no group
  /// can hold up others: it moves more than the scheduler's group quantum, a page of it is not
  /// resident, its queue's window of chunks in flight is full, or its next request has not been
  /// posted yet. (Posting a group with one call avoids the last.) Each member has its own
  /// completion, and a member that fails does not stop the others.
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
  /// Bytes known to have arrived; the request's length when status is 0. After a failure these
  /// need not be the first ones: chunks of a request may arrive in any order.
  std::uint64_t bytes = 0;
};

static_assert(std::is_trivially_copyable_v<RdmaRequest>);
static_assert(std::is_trivially_copyable_v<RdmaCompletion>);

}  // namespace clan

// RDMA queues: bulk transfers between local memory and remote apertures, handed to the NIC's driver
// (clan-driver-interface section 3.2, U-Net/MM section 4).
//
//   auto q = RdmaQueue::create(context);
//   q->write(remote, offset, buffer, length, {.cookie = 7});
//   q->wait(completions);                                   // {cookie 7, status 0, bytes length}
//
// Requests of one queue are carried out and completed in order; queues share the driver round-robin
// by bytes, by priority. Transfers to CLAN memory are one copy by this processor, to a peer's own
// memory one by process_vm_writev, with the peer's help if it polls; where the kernel forbids that,
// the peer's driver copies through staging memory. Errors come as completions.
//
// Small requests are done before the call returns; the rest by a thread that polls or waits,
// otherwise by the driver thread.
//
// Thread-safety: one thread posts, one thread (it may be another) takes completions.
#pragma once

#include <clan/aperture.h>
#include <clan/event_queue.h>
#include <clan/rdma_request.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace clan {

namespace engine {
class RdmaQueueCore;
}

struct RdmaOptions {
  std::uint64_t cookie = 0;
  std::uint8_t priority = 0;  ///< 0..7, 7 most urgent
  bool more = false;          ///< the next request belongs to the same message
};

/// What the RDMA engine of a context has done.
struct RdmaCounters {
  std::uint64_t requests = 0, completions = 0, bytes = 0, chunks = 0, splits = 0, deferrals = 0,
                bad_requests = 0;
  std::uint64_t tlb_hits = 0, tlb_misses = 0, tlb_evictions = 0, tlb_pinned = 0;
};

/// When it goes, outstanding requests are cancelled; their memory is not touched afterwards.
class CLAN_EXPORT RdmaQueue {
 public:
  /// `depth` requests may wait; a power of two up to 65536. ENOSPC: 256 queues per context.
  static Result<RdmaQueue> create(Context& context, std::uint32_t depth = 256);
  RdmaQueue(RdmaQueue&&) noexcept = default;
  RdmaQueue& operator=(RdmaQueue&&) noexcept = default;

  /// Posts a write of local memory to a remote aperture, or a read. The memory must stay valid
  /// until the completion. EAGAIN: the ring is full, take completions first.
  Status write(const RemoteAperture& remote, std::uint64_t remote_offset, const void* local,
               std::uint64_t length, const RdmaOptions& options = {});
  Status read(const RemoteAperture& remote, std::uint64_t remote_offset, void* local,
              std::uint64_t length, const RdmaOptions& options = {});

  /// Takes completions, doing driver work meanwhile. Never sleeps.
  std::size_t poll(std::span<RdmaCompletion> completions);
  /// The same, waiting for at least one. ETIMEDOUT.
  Result<std::size_t> wait(std::span<RdmaCompletion> completions, std::int64_t timeout_ms = -1);
  /// Posts Event{tag, kRdma} when there are completions.
  Status register_with(EventQueue& queue, std::uint64_t tag);

  /// For a thread that polls elsewhere: takes part, as poll() does, in a peer's copy of our memory.
  static void help(Context& context);

  /// For the whole context.
  static RdmaCounters counters(Context& context);

 private:
  explicit RdmaQueue(std::shared_ptr<engine::RdmaQueueCore> core) : core_(std::move(core)) {}
  std::shared_ptr<engine::RdmaQueueCore> core_;
};

}  // namespace clan

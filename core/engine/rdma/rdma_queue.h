// RdmaQueueCore: an application's queue of RDMA requests over the driver's ring.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "base/event_count.h"
#include "clan/face/wait.h"
#include "clan/rdma.h"
#include "engine/rdma/rdma_driver.h"
#include "nic/rdma_ring.h"

namespace clan::engine {

class RdmaQueueCore {
 public:
  static Result<std::shared_ptr<RdmaQueueCore>> create(std::shared_ptr<ContextCore> context,
                                                       std::uint32_t depth);
  ~RdmaQueueCore();

  Status post(RdmaOp op, const RemoteAperture& remote, std::uint64_t remote_offset, void* local,
              std::uint64_t length, const RdmaOptions& options);
  std::size_t poll(std::span<RdmaCompletion> completions);
  Result<std::size_t> wait(std::span<RdmaCompletion> completions, std::uint64_t deadline_ns);
  Status bind(std::shared_ptr<EventQueueCore> queue, std::uint64_t tag);

  /// From the scheduler, under the driver's mutex.
  void completed();

 private:
  std::size_t reap(std::span<RdmaCompletion> completions);
  RdmaQueueCore(std::shared_ptr<ContextCore> context, RdmaDriver& driver, std::uint32_t depth)
      : context_(std::move(context)),
        driver_(driver),
        ring_(depth),
        waiter_(context_->options().wait) {}
  std::shared_ptr<ContextCore> context_;
  RdmaDriver& driver_;
  nic::RdmaRing ring_;
  std::optional<std::uint32_t> id_;  ///< at the driver
  /// Posted and not yet reaped. If 0, the poster may move a request at once; its completion is then
  /// kept here, and is older than any in the ring.
  std::atomic<std::uint64_t> outstanding_{0};
  std::atomic<bool> moved_now_{false};
  RdmaCompletion now_;
  bool in_group_ = false;   ///< the last one posted has `more`; the poster's
  EventCount completions_;  ///< rounds of them
  std::mutex mutex_;
  EventBinding events_;
  Waiter waiter_;
};

}  // namespace clan::engine

// ClosedConnection: what is left of a connection that we have closed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "engine/context/context_core.h"
#include "engine/context/endpoint_table.h"

namespace clan::engine {

/// What is left of a connection that we have closed: its region, which the peer may write to until
/// it closes as well or dies, and the endpoint that reports that. Kept by the context.
class ClosedConnection final : public OobSink {
 public:
  ClosedConnection(ContextCore& context, std::shared_ptr<nic::Link> link, nic::Nic& nic,
                   std::shared_ptr<RegionArena> arena, const RegionArena::Region& region,
                   std::uint32_t aperture, std::uint32_t endpoint)
      : context_(context),
        link_(std::move(link)),
        nic_(nic),
        arena_(std::move(arena)),
        region_(region),
        aperture_(aperture),
        endpoint_(endpoint) {}
  /// The peer touches the region no more: gives it back. Once; the caller holds a reference.
  void release();
  void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) override;
  void on_link_down(const std::shared_ptr<nic::Link>& link) override;

 private:
  ContextCore& context_;
  std::shared_ptr<nic::Link> link_;
  nic::Nic& nic_;
  std::shared_ptr<RegionArena> arena_;
  RegionArena::Region region_;
  std::uint32_t aperture_;  ///< kMaxApertures: none
  std::uint32_t endpoint_;
  std::atomic<bool> released_{false};
};

/// Tells the peer's endpoint `to` that we have closed or given up (kOobClose, kOobReset), and why:
/// an errno, or 0.
void tell_end(nic::Link& link, std::uint32_t type, std::uint32_t to, std::uint32_t from,
              int reason);

}  // namespace clan::engine

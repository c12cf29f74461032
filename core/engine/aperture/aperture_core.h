// What Aperture, RemoteAperture and Tripwire are inside.
#pragma once

#include <memory>
#include <mutex>

#include "clan/aperture.h"
#include "clan/tripwire.h"
#include "engine/context/own_endpoint.h"
#include "engine/event/event_queue_core.h"

namespace clan::engine {

// Named apertures: a peer that knows a number gets the cookie by two out-of-band messages, which
// the owner's driver thread answers: kOobLookUp{name} to the node, kOobFound{err, aperture} back.
constexpr std::uint32_t kOobLookUp = kOobInternal | 6;
constexpr std::uint32_t kOobFound = kOobInternal | 7;

/// Driver thread: answers a kOobLookUp.
void answer_look_up(ContextCore& context, nic::Link& link, const OobMessage& message);

class ApertureCore {
 public:
  static Result<std::shared_ptr<ApertureCore>> create(std::shared_ptr<ContextCore> context,
                                                      const nic::ApertureSpec& spec,
                                                      std::int64_t peers_uid);
  ~ApertureCore();

  const RdmaCookie& cookie() const { return cookie_; }
  std::span<std::byte> region() const { return {base_, static_cast<std::size_t>(cookie_.length)}; }
  nic::Nic& nic() { return *nic_; }
  ContextCore& context() { return *context_; }
  const std::shared_ptr<ContextCore>& context_pointer() const { return context_; }
  Status revoke();
  Status set_name(std::uint64_t name, std::span<const std::byte> note);
  /// revoke(), or at least no access by peers that come later.
  void end();
  // order: sees what revoke() did before it
  bool live() const { return live_.load(std::memory_order_acquire); }

 private:
  ApertureCore(std::shared_ptr<ContextCore> context, nic::Nic* nic, RdmaCookie cookie,
               std::byte* base)
      : context_(std::move(context)), nic_(nic), cookie_(cookie), base_(base) {}
  std::shared_ptr<ContextCore> context_;
  nic::Nic* nic_;
  RdmaCookie cookie_;
  std::byte* base_;
  std::atomic<bool> live_{true};
  std::mutex name_mutex_;
  bool named_ = false;
  std::uint64_t name_ = 0;
};

class RemoteApertureCore {
 public:
  static Result<std::shared_ptr<RemoteApertureCore>> import(std::shared_ptr<ContextCore> context,
                                                            std::shared_ptr<nic::Link> link,
                                                            const RdmaCookie& cookie,
                                                            bool may_wait);
  ~RemoteApertureCore();

  const nic::RemoteHandle& handle() const { return handle_; }
  nic::Link& link() { return *link_; }
  const std::shared_ptr<ContextCore>& context_pointer() const { return context_; }
  /// Its number with the context's RDMA driver, given when first asked for.
  Result<std::uint32_t> rdma_handle(RdmaDriver& driver);

 private:
  RemoteApertureCore(std::shared_ptr<ContextCore> context, std::shared_ptr<nic::Link> link,
                     nic::RemoteHandle handle)
      : context_(std::move(context)), link_(std::move(link)), handle_(handle) {}
  std::shared_ptr<ContextCore> context_;
  std::shared_ptr<nic::Link> link_;
  nic::RemoteHandle handle_;
  std::mutex rdma_mutex_;
  RdmaDriver* rdma_ = nullptr;
  std::uint32_t rdma_handle_ = 0;
};

class TripwireCore final : public OobSink {
 public:
  TripwireCore(std::shared_ptr<ApertureCore> aperture, std::uint32_t index)
      : aperture_(std::move(aperture)), index_(index), endpoint_(aperture_->context_pointer()) {}
  ~TripwireCore() override;

  std::uint32_t index() const { return index_; }
  nic::Nic& nic() { return aperture_->nic(); }
  void note_armed();
  void fire();
  /// False once the aperture has been revoked: its number may belong to another tripwire then.
  bool valid() const { return aperture_->live() && aperture_->context().usable(); }

  // OobSink, driver thread
  void on_link_down(const std::shared_ptr<nic::Link>& link) override;

 private:
  friend class clan::Tripwire;
  std::shared_ptr<ApertureCore> aperture_;
  std::uint32_t index_;
  std::uint32_t fired_when_armed_ = 0;
  std::atomic<nic::Link*> watched_{nullptr};
  OwnEndpoint endpoint_;
  std::mutex mutex_;  ///< guards events_: the driver thread fires as well
  EventBinding events_;
};

}  // namespace clan::engine

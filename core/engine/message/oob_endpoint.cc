#include <unistd.h>

#include <algorithm>
#include <deque>

#include "base/futex.h"
#include "clan/detail/words.h"
#include "clan/endpoint.h"
#include "clan/face/wait.h"
#include "engine/context/context_core.h"
#include "engine/event/event_queue_core.h"

namespace clan::engine {

class OobEndpointCore final : public OobSink, public std::enable_shared_from_this<OobEndpointCore> {
 public:
  explicit OobEndpointCore(std::shared_ptr<ContextCore> context)
      : context_(std::move(context)), waiter_(context_->options().wait) {}

  ~OobEndpointCore() override {
    if (!service_.empty()) context_->remove_service(service_);
    if (endpoint_ != 0) context_->endpoints().remove(endpoint_);
    events_.unbind();
  }

  Status start(const std::string& service) {
    auto endpoint = context_->add_endpoint(weak_from_this());
    if (!endpoint) return endpoint.error();
    endpoint_ = *endpoint;
    if (!service.empty()) {
      if (auto s = context_->add_service(service, endpoint_); !s) return s;
      service_ = service;
    }
    return context_->listen_as_node();
  }

  Address address() const { return context_->address_of(endpoint_); }
  ContextCore& context() { return *context_; }

  // --- driver thread -----------------------------------------------------------------------------
  void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) override {
    if ((message.type & kOobInternal) != 0) return;
    std::lock_guard lock(mutex_);
    if (messages_.size() == context_->options().oob_queue)
      return count(context_->counters().oob_discarded);
    OobArrival& arrival = messages_.emplace_back();
    arrival.from = {link->remote_node(), message.from,
                    static_cast<std::uint32_t>(link->remote_uid())};
    arrival.type = message.type;
    arrival.length = std::min<std::uint32_t>(message.length, kOobPayload);
    arrival.payload = message.payload;
    wake();
    events_.post();
  }

  void on_link_down(const std::shared_ptr<nic::Link>&) override {
    if (!context_->usable()) wake();
  }

  // --- consumer ----------------------------------------------------------------------------------
  Result<OobArrival> try_recv() {
    if (!context_->usable()) return unusable_error();
    std::lock_guard lock(mutex_);
    if (messages_.empty()) return Error{EAGAIN, "no out-of-band message"};
    const OobArrival arrival = messages_.front();
    messages_.pop_front();
    return arrival;
  }

  Result<OobArrival> recv(std::uint64_t deadline_ns) {
    for (;;) {
      // PAIR oob.arrivals: what comes after this look changes the word that the futex compares
      const std::uint32_t seen = words::load_acquire(arrivals_);
      auto m = try_recv();
      if (m.ok() || m.error().err != EAGAIN) return m;
      int rc = 0;
      const auto ready = [&] {
        return arrivals_.load(std::memory_order_relaxed) != seen;  // relaxed: a hint
      };
      const auto sleep = [&] {
        count(context_->counters().sleeps);
        // In slices, so that the end of the context is noticed even without a wake-up.
        rc = futex_wait(arrivals_, seen, std::min(deadline_ns, monotonic_ns() + 1'000'000'000u));
        count(context_->counters().wakeups);
        return true;
      };
      if (waiter_.wait(ready, PeerHint{}, deadline_ns, sleep) == WaitResult::kTimedOut) {
        return Error{ETIMEDOUT, "no out-of-band message in time"};
      }
      if (rc == EINTR)
        return Error{EINTR, "a signal arrived while waiting for an out-of-band message"};
    }
  }

  Status bind(std::shared_ptr<EventQueueCore> queue, std::uint64_t tag) {
    std::lock_guard lock(mutex_);
    const Status bound = events_.bind(std::move(queue), EventKind::kOob, tag);
    if (bound && !messages_.empty()) events_.post();
    return bound;
  }

 private:
  void wake() {
    words::add(arrivals_, 1);  // PAIR oob.arrivals: behind what has come, or has ended
    futex_wake(arrivals_);
  }

  std::shared_ptr<ContextCore> context_;
  std::string service_;
  std::uint32_t endpoint_ = 0;
  std::atomic<std::uint32_t> arrivals_{0};  ///< futex word
  Waiter waiter_;

  std::mutex mutex_;  ///< guards what follows: the driver thread puts messages in
  std::deque<OobArrival> messages_;
  EventBinding events_;
};

}  // namespace clan::engine

namespace clan {

Result<OobEndpoint> OobEndpoint::create(Context& context, const std::string& service) {
  auto core = std::make_shared<engine::OobEndpointCore>(context.core());
  if (auto s = core->start(service); !s) return s.error();
  return OobEndpoint(std::move(core));
}

Address OobEndpoint::address() const { return core_->address(); }

Result<Address> OobEndpoint::look_up(const std::string& service, std::int64_t timeout_ms,
                                     std::int64_t uid) {
  const uid_t owner = core_->context().owner(uid);
  std::uint32_t endpoint = 0;
  auto link =
      core_->context().link_to_service(service, owner, deadline_after_ms(timeout_ms), &endpoint);
  if (!link) return link.error();
  return Address{(*link)->remote_node(), endpoint, owner};
}

Status OobEndpoint::send(const Address& to, std::uint32_t type, std::span<const std::byte> payload,
                         std::int64_t timeout_ms) {
  if ((type & kOobInternal) != 0) return Error{EINVAL, "types with the top bit set are CLAN's own"};
  if (payload.size() > kOobPayload)
    return Error{EMSGSIZE, "more than one out-of-band message holds"};
  engine::ContextCore& context = core_->context();
  if (!context.usable()) return engine::unusable_error();
  auto link = context.link_to_node(to.node, to.uid, deadline_after_ms(timeout_ms));
  if (!link) return link.error();
  OobMessage message{.to = to.endpoint,
                     .from = core_->address().endpoint,
                     .type = type,
                     .length = static_cast<std::uint32_t>(payload.size())};
  std::copy(payload.begin(), payload.end(), message.payload.begin());
  return (*link)->send_oob(message);
}

Result<OobArrival> OobEndpoint::try_recv() { return core_->try_recv(); }
Result<OobArrival> OobEndpoint::recv(std::int64_t timeout_ms) {
  return core_->recv(deadline_after_ms(timeout_ms));
}
Status OobEndpoint::register_with(EventQueue& queue, std::uint64_t tag) {
  return core_->bind(queue.core(), tag);
}

}  // namespace clan

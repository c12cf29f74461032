#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/futex.h"
#include "clan/dekker.h"
#include "clan/endpoint.h"
#include "clan/wait.h"
#include "clan/words.h"
#include "engine/context_core.h"
#include "engine/event_queue_core.h"

namespace clan::engine {

// The ring has one producer, the driver thread, and one consumer. Positions count messages and
// never wrap.
class OobEndpointCore final : public OobSink, public std::enable_shared_from_this<OobEndpointCore> {
 public:
  explicit OobEndpointCore(std::shared_ptr<ContextCore> context)
      : context_(std::move(context)),
        ring_(context_->options().oob_queue),
        waiter_(context_->options().wait) {}

  ~OobEndpointCore() override {
    if (!service_.empty()) context_->remove_service(service_);
    if (endpoint_ != 0) context_->endpoints().remove(endpoint_);
    if (queue_) queue_->remove(event_);
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
  std::uint64_t discarded() const {
    return discarded_.load(std::memory_order_relaxed);  // relaxed: a statistic
  }

  // --- driver thread -----------------------------------------------------------------------------
  void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) override {
    if ((message.type & kOobInternal) != 0) return;
    const std::uint64_t tail = tail_.load(std::memory_order_relaxed);  // relaxed: only we write it
    // PAIR oob.head: the consumer has finished with the slot
    if (tail - words::look(head_) == ring_.size()) {
      discarded_.fetch_add(1, std::memory_order_relaxed);
      count(context_->counters().oob_discarded);
      return;
    }
    OobArrival& slot = ring_[tail % ring_.size()];
    slot.from = {link->remote_node(), message.from, static_cast<std::uint32_t>(link->remote_uid())};
    slot.type = message.type;
    slot.length = std::min<std::uint32_t>(message.length, kOobPayload);
    slot.payload = message.payload;
    // PAIR oob.tail: publishes the slot to try_recv
    words::publish(tail_, tail + 1);
    wake();
    std::lock_guard lock(mutex_);
    if (queue_) queue_->post(event_);
  }

  void on_link_down(const std::shared_ptr<nic::Link>&) override {
    if (!context_->usable()) wake();
  }

  // --- consumer ----------------------------------------------------------------------------------
  bool pending() const {
    // relaxed: a glance; try_recv acquires
    return tail_.load(std::memory_order_relaxed) != head_.load(std::memory_order_relaxed);
  }

  Result<OobArrival> try_recv() {
    if (!context_->usable()) return unusable_error();
    const std::uint64_t head = head_.load(std::memory_order_relaxed);  // relaxed: only we write it
    // PAIR oob.tail: sees the slot
    if (words::look(tail_) == head) return Error{EAGAIN, "no out-of-band message"};
    OobArrival arrival = ring_[head % ring_.size()];
    // PAIR oob.head: gives the slot back to on_oob
    words::publish(head_, head + 1);
    return arrival;
  }

  Result<OobArrival> recv(std::uint64_t deadline_ns) {
    for (;;) {
      // order: before the look at the ring; the futex compares with it (oob.sleeping)
      const std::uint32_t seen = arrivals_.load(std::memory_order_seq_cst);
      auto m = try_recv();
      if (m.ok() || m.error().err != EAGAIN) return m;
      int rc = 0;
      const auto sleep = [&] {
        rc = sleep_after(seen, deadline_ns);
        return true;
      };
      if (waiter_.wait([this] { return pending(); }, Awaited{}, deadline_ns, sleep) ==
          Waited::kTimedOut) {
        return Error{ETIMEDOUT, "no out-of-band message in time"};
      }
      if (rc == EINTR)
        return Error{EINTR, "a signal arrived while waiting for an out-of-band message"};
    }
  }

  Status bind(std::shared_ptr<EventQueueCore> queue, std::uint64_t tag) {
    auto event = queue->add(EventKind::kOob, tag);
    if (!event) return event.error();
    std::lock_guard lock(mutex_);
    if (queue_) queue_->remove(event_);
    queue_ = std::move(queue);
    event_ = *event;
    if (pending()) queue_->post(event_);
    return {};
  }

 private:
  // Until something arrives after `seen`.
  int sleep_after(std::uint32_t seen, std::uint64_t deadline_ns) {
    // PAIR oob.sleeping: stored before the last look at arrivals_ (the kernel's); wake() loads it
    // after
    dekker::announce(sleeping_, 1);
    count(context_->counters().sleeps);
    // In slices, so that the end of the context is noticed even without a wake-up.
    const int rc =
        futex_wait(arrivals_, seen, std::min(deadline_ns, monotonic_ns() + 1'000'000'000u));
    sleeping_.store(0, std::memory_order_relaxed);  // relaxed: one needless wake-up at most
    count(context_->counters().wakeups);
    return rc;
  }
  void wake() {
    // PAIR oob.sleeping: changed, then the look for sleepers; one announced before is woken
    dekker::add(arrivals_, 1);
    if (dekker::look(sleeping_) != 0) futex_wake(arrivals_);
  }

  std::shared_ptr<ContextCore> context_;
  std::string service_;
  std::uint32_t endpoint_ = 0;
  std::vector<OobArrival> ring_;

  // The driver thread's.
  alignas(kCacheLine) std::atomic<std::uint64_t> tail_{0};
  std::atomic<std::uint32_t> arrivals_{0};  ///< futex word
  std::atomic<std::uint64_t> discarded_{0};

  // The consumer's.
  alignas(kCacheLine) std::atomic<std::uint64_t> head_{0};
  std::atomic<std::uint32_t> sleeping_{0};
  Waiter waiter_;

  std::mutex mutex_;  ///< guards the event: the driver thread posts, the application binds
  std::shared_ptr<EventQueueCore> queue_;
  std::uint32_t event_ = 0;
};

}  // namespace clan::engine

namespace clan {

OobEndpoint::OobEndpoint(std::shared_ptr<engine::OobEndpointCore> core) : core_(std::move(core)) {}
OobEndpoint::OobEndpoint(OobEndpoint&&) noexcept = default;
OobEndpoint& OobEndpoint::operator=(OobEndpoint&&) noexcept = default;
OobEndpoint::~OobEndpoint() = default;

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
  OobMessage message;
  message.to = to.endpoint;
  message.from = core_->address().endpoint;
  message.type = type;
  message.length = static_cast<std::uint32_t>(payload.size());
  std::copy(payload.begin(), payload.end(), message.payload.begin());
  return (*link)->send_oob(message);
}

Result<OobArrival> OobEndpoint::try_recv() { return core_->try_recv(); }
Result<OobArrival> OobEndpoint::recv(std::int64_t timeout_ms) {
  return core_->recv(deadline_after_ms(timeout_ms));
}
std::uint64_t OobEndpoint::discarded() const { return core_->discarded(); }
Status OobEndpoint::register_with(EventQueue& queue, std::uint64_t tag) {
  return core_->bind(queue.core(), tag);
}

}  // namespace clan

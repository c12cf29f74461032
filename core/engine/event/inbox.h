// Inbox: an endpoint at which the driver thread delivers what threads of the application take.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "base/event_count.h"
#include "clan/detail/clock.h"
#include "clan/face/wait.h"
#include "engine/context/own_endpoint.h"
#include "engine/event/event_queue_core.h"

namespace clan::engine {

/// Thread-safe.
template <typename Item>
class Inbox : public OobSink {
 public:
  /// `kind` is that of its events, `room` the number of items that it keeps.
  Inbox(std::shared_ptr<ContextCore> context, EventKind kind, std::size_t room)
      : kind_(kind), room_(room), waiter_(context->options().wait), endpoint_(std::move(context)) {}
  ~Inbox() override {
    endpoint_.end();
    events_.unbind();
  }

  OwnEndpoint& endpoint() { return endpoint_; }
  ContextCore& context() { return endpoint_.context(); }

  void on_link_down(const std::shared_ptr<nic::Link>&) override {
    if (!context().usable()) news_.notify();
  }

  /// Takes one item. EAGAIN.
  Result<Item> try_take() {
    if (!context().usable()) return unusable_error();
    std::lock_guard lock(mutex_);
    if (items_.empty()) return Error{EAGAIN, "nothing has arrived"};
    Item item = std::move(items_.front());
    items_.pop_front();
    // The queue forgets an event once it has been taken; there may be more items than that.
    if (!items_.empty()) events_.post();
    return item;
  }

  /// The same, waiting. ETIMEDOUT, EINTR.
  Result<Item> take(std::uint64_t deadline_ns) {
    for (;;) {
      const std::uint32_t seen = news_.prepare_wait();
      auto item = try_take();
      if (item.ok() || item.error().err != EAGAIN) return item;
      int rc = 0;
      const auto sleep = [&] {
        count(context().counters().sleeps);
        // In slices, so that the end of the context is noticed even without a wake-up.
        const std::uint64_t slice = std::min(deadline_ns, monotonic_ns() + 1'000'000'000u);
        rc = news_.commit_wait([&](auto& word) { return futex_wait(word, seen, slice); });
        count(context().counters().wakeups);
        return true;
      };
      const auto ready = [&] { return news_.has_changed(seen); };
      if (waiter_.wait(ready, PeerHint{}, deadline_ns, sleep) == WaitResult::kTimedOut)
        return Error{ETIMEDOUT, "nothing has arrived in time"};
      if (rc == EINTR) return Error{EINTR, "a signal arrived while waiting for what arrives"};
    }
  }

  Status bind(std::shared_ptr<EventQueueCore> queue, std::uint64_t tag) {
    std::lock_guard lock(mutex_);
    const Status bound = events_.bind(std::move(queue), kind_, tag);
    if (bound && !items_.empty()) events_.post();
    return bound;
  }

 protected:
  /// For the driver thread: nobody else delivers, so there is room until it does.
  bool is_full() {
    std::lock_guard lock(mutex_);
    return items_.size() >= room_;
  }
  void deliver(Item item) {
    std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
    events_.post();
    news_.notify();
  }

 private:
  const EventKind kind_;
  const std::size_t room_;
  Waiter waiter_;
  EventCount news_;
  std::mutex mutex_;  ///< guards what follows
  std::deque<Item> items_;
  EventBinding events_;
  OwnEndpoint endpoint_;
};

}  // namespace clan::engine

// Place: where threads wait for completions, one for each completion queue, and one for each VI
// that has a work queue without one. The paper's asynchronous event queue (via-over-clan 3.4, 3.6),
// for several threads.
//
// An event of the engine goes to one thread only, and may be of use to another. So of the threads
// that wait here one, the leader, sleeps on the event queue, and the others on a condition. What
// completes a descriptor calls wake(): all look again.
#pragma once

#include <clan/detail/clock.h>
#include <clan/detail/dekker.h>
#include <clan/event_queue.h>
#include <clan/rdma.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>

namespace clan::via {

inline std::int64_t ms_until(std::uint64_t deadline_ns) {
  if (deadline_ns == kNoDeadline) return -1;
  const std::uint64_t now = monotonic_ns();
  return now >= deadline_ns ? 0
                            : static_cast<std::int64_t>((deadline_ns - now + 999'999) / 1'000'000);
}

class Place {
 public:
  static std::unique_ptr<Place> create(Context& context) {
    auto events = EventQueue::create(context);
    if (!events) return nullptr;
    auto user = events->add_user(0);
    if (!user) return nullptr;
    return std::unique_ptr<Place>(new Place(context, std::move(*events), *user));
  }

  EventQueue& events() { return events_; }

  bool has_waiters() const { return dekker::load(waiters_) != 0; }

  /// Has all threads that wait here look again, at what this thread has changed under a lock that
  /// their look() takes, too, or has announced: one that looked before is counted.
  void wake() {
    if (!has_waiters()) return;
    dekker::add(news_, 1u);
    std::unique_lock lock(mutex_);
    const bool leads = leads_;
    lock.unlock();
    others_.notify_all();
    if (leads) events_.post_user(user_);
  }

  /// Waits until look() is true; false: the time is over, or the context has ended. take(events)
  /// serves those that this thread has taken for all; expect(true) comes before it waits for them,
  /// expect(false) behind.
  template <typename Look, typename Take, typename Expect>
  bool wait(std::uint64_t deadline_ns, Look&& look, Take&& take, Expect&& expect) {
    if (look()) return true;
    const Waiting waiting(waiters_);
    for (;;) {
      const std::uint32_t seen = dekker::load(news_);
      if (look()) return true;
      // A peer may have woken this thread to take part in a long copy.
      RdmaQueue::help(context_);
      if (monotonic_ns() >= deadline_ns) return false;
      std::unique_lock lock(mutex_);
      if (dekker::load(news_) != seen) continue;
      if (leads_) {
        follow(lock, deadline_ns);
        continue;
      }
      leads_ = true;
      lock.unlock();
      std::array<Event, 64> events;
      expect(true);
      const auto n = events_.wait(events, ms_until(deadline_ns));
      expect(false);
      lock.lock();
      leads_ = false;
      lock.unlock();
      others_.notify_one();
      if (n.ok()) take(std::span<const Event>(events.data(), *n));
      if (!n.ok() && n.error().err != ETIMEDOUT && n.error().err != EINTR) return false;
    }
  }

 private:
  struct Waiting {
    explicit Waiting(std::atomic<std::uint32_t>& n) : count(n) { dekker::add(count, 1u); }
    ~Waiting() { dekker::subtract(count, 1u); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    std::atomic<std::uint32_t>& count;
  };

  Place(Context& context, EventQueue events, std::uint32_t user)
      : context_(context), events_(std::move(events)), user_(user) {}

  void follow(std::unique_lock<std::mutex>& lock, std::uint64_t deadline_ns) {
    if (deadline_ns == kNoDeadline) return others_.wait(lock);
    others_.wait_for(lock, std::chrono::milliseconds(ms_until(deadline_ns)));
  }

  Context& context_;
  EventQueue events_;
  std::uint32_t user_;
  std::atomic<std::uint32_t> news_{0}, waiters_{0};
  std::mutex mutex_;
  std::condition_variable others_;
  bool leads_ = false;  ///< a thread sleeps on the event queue, or is about to
};

}  // namespace clan::via

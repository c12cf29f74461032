// Native streams in the loop: one event queue for all of them, and threads that connect, as that
// waits for the other process. A service that is stopped holds up its own connections only.
#pragma once

#include <clan/event_queue.h>
#include <clan/face/wait.h>
#include <clan/stream.h>

#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace clan::gateway {

class Natives {
 public:
  /// `set`: the loop's epoll set, which watches the queue's descriptor with `tag`.
  static Result<std::unique_ptr<Natives>> create(int set, std::uint64_t tag);

  /// Connects in another thread; connected() has what came of it.
  void connect(const std::string& service, std::uint64_t id, std::uint64_t deadline_ns);
  using Outcome = std::pair<std::uint64_t, Result<Stream>>;
  std::vector<Outcome> connected();

  /// Events of streams carry their connection's id. Spins for them, and for what the set tells, as
  /// long as past waits make it worth while, and takes what there is.
  std::span<const Event> poll();
  /// Before the loop sleeps in the set. False: there are events.
  bool arm() { return queue_.arm_fd(); }
  void slept() { waiter_.slept(); }
  EventQueue& queue() { return queue_; }
  /// The number of streams now; without one nothing is waited for.
  std::size_t streams = 0;

 private:
  struct Job {
    std::uint64_t id, deadline_ns;
  };
  struct Shared {  // with the threads
    std::mutex mutex;
    std::map<std::string, std::deque<Job>> jobs;  // a thread for each service
    std::condition_variable wake;
    std::vector<Outcome> outcomes;
  };
  Natives(Context context, EventQueue queue, std::uint32_t done, int set);
  void serve(const std::string& service);

  Context context_;
  EventQueue queue_;
  const std::uint32_t done_;  // the event that says that something has connected
  const int set_;
  Shared shared_;
  Waiter waiter_;
  std::array<Event, 64> events_;
};

}  // namespace clan::gateway

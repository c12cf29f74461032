// Asynchronous event queues: tripwires, RDMA completions, out-of-band arrivals, connections and
// streams of any number of endpoints, delivered to one queue in shared memory
// (clan-driver-interface 3.4).
//
//  - dequeued without a system call; the cost does not depend on how many events are registered
//  - each registered event is in the queue at most once, so the queue cannot overflow
//  - an event is a hint that something happened since it was last taken: look, and expect to find
//    nothing now and then
//  - events of a queue are taken in rotating order: a busy endpoint cannot starve a quiet one
//  - blocks with a futex (wait) or with a descriptor (fd, for epoll and friends); the threads that
//    share a queue must all use the same one of the two
//
// Peers of one user id write the same queue memory; peers of other users have a copy of their own.
//
// Thread-safety: any number of threads may poll and wait; each event goes to one of them.
#pragma once

#include <clan/context.h>
#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace clan {

namespace engine {
class EventQueueCore;
}

enum class EventKind : std::uint32_t {
  kTripwire = 1,
  kStream,      ///< readable, writable again, or closed by the peer
  kConnection,  ///< a listener has a connection to accept
  kMessage,     ///< a message endpoint has something to receive, or room again
  kRdma,        ///< an RDMA queue has completions
  kOob,         ///< an endpoint has out-of-band messages
  kUser,        ///< post_user()
};

struct Event {
  std::uint64_t tag = 0;  ///< as given at registration
  EventKind kind{};
};

class CLAN_EXPORT EventQueue {
 public:
  /// ENOSPC: a context has at most 4096 queues; 65536 events in each.
  static Result<EventQueue> create(Context& context);
  EventQueue(EventQueue&&) noexcept = default;
  EventQueue& operator=(EventQueue&&) noexcept = default;

  /// Takes up to events.size() events, each registration at most once. Never enters the kernel.
  std::size_t poll(std::span<Event> events);

  /// Takes packets of other hosts, which may be events, for a thread that polls. Does nothing
  /// without such hosts, and costs system calls with them.
  void fetch();

  /// As poll(), but waits for one as WaitOptions say. ETIMEDOUT; EINTR: a signal while asleep.
  Result<std::size_t> wait(std::span<Event> events, std::int64_t timeout_ms = -1);

  /// An event of the application's own, so that one wait serves it too. ENOSPC.
  Result<std::uint32_t> add_user(std::uint64_t tag);
  /// Posts it, from any thread of this process.
  void post_user(std::uint32_t event);
  void remove_user(std::uint32_t event);

  /// A descriptor that becomes readable when an event arrives after arm_fd(). Owned by the queue.
  Result<int> fd();
  /// Call before sleeping on the descriptor. False: there are events, do not sleep. Arm again,
  /// after poll(), when it woke the sleeper.
  bool arm_fd();
  /// The same for a thread that is going to call sleep().
  bool arm_fd_for_sleep();
  /// For an awake thread that is about to take events: events until it arms again leave the
  /// descriptor alone. Only where no other thread sleeps on the queue.
  void disarm_fd();
  /// A descriptor that shows packets of other hosts, for a thread that sleeps elsewhere, as in
  /// epoll_wait(), and fetches them itself: they wake it, not the driver thread. Sleep on it and
  /// fd() after arm_packets(), then arm_fd_for_sleep(). -1: no network.
  int packets_fd();
  /// Fetches what has come. False: there may be more, do not sleep. Call it again, or fetch(), when
  /// woken; otherwise the driver thread fetches half a millisecond later.
  bool arm_packets();
  /// Sleeps as poll() until one of `fds` is ready, and fetches packets of other hosts meanwhile, so
  /// that they wake this thread first. One of `fds` is fd(), or watches it as an epoll set does,
  /// after arm_fd_for_sleep(). ETIMEDOUT, EINTR; EINVAL: none, or more than kMostFds.
  Status sleep(std::span<pollfd> fds, std::int64_t timeout_ms = -1);
  static constexpr std::size_t kMostFds = 2;
  /// Makes the descriptor readable, by any thread: for one that leaves events to others.
  void ring_fd();

  const std::shared_ptr<engine::EventQueueCore>& core() const { return core_; }

 private:
  explicit EventQueue(std::shared_ptr<engine::EventQueueCore> core) : core_(std::move(core)) {}
  std::shared_ptr<engine::EventQueueCore> core_;
};

}  // namespace clan

// EventQueueCore: the consumer's side of an event queue. The producers are nic::post_event.
//
// A queue has the same number in every lane of its context; the consumer checks each lane's copy.
// The registrations are private memory: a peer can at most invent an event.
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "clan/detail/brief_lock.h"
#include "clan/detail/words.h"
#include "clan/event_queue.h"
#include "clan/face/wait.h"
#include "engine/context/context_core.h"

namespace clan::engine {

class EventQueueCore {
 public:
  /// A context has no more than that: events in another lane would be lost.
  static constexpr std::size_t kMaxLanes = 64;

  static Result<std::shared_ptr<EventQueueCore>> create(std::shared_ptr<ContextCore> context);
  ~EventQueueCore();

  std::uint32_t index() const { return index_; }
  /// By QueueTable::add, before anyone else sees the queue.
  void set_index(std::uint32_t index) { index_ = index; }

  /// Registers an event. ENOSPC.
  Result<std::uint32_t> add(EventKind kind, std::uint64_t tag);
  void remove(std::uint32_t event);
  /// Puts an event in from this process.
  void post(std::uint32_t event);

  std::size_t poll(std::span<Event> events);
  ContextCore& context() { return *context_; }
  Result<std::size_t> wait(std::span<Event> events, std::uint64_t deadline_ns);
  Result<int> fd();
  bool arm_fd();
  bool arm_fd_for_sleep();
  void disarm_fd();
  /// True when poll() would probably find something.
  bool pending();
  /// Sleeps until something is posted (at once if something waits). Takes nothing.
  Status wait_only(std::uint64_t deadline_ns);

  /// A lane has been added to the context.
  void add_lane(const nic::NicImage& lane);
  /// Wakes the threads that sleep on the descriptor. Any thread.
  void ring();
  /// Wakes every sleeper, so that it checks the state of the context again.
  void wake_all();
  /// A peer died: one of its posts may have stopped half-way. Finds every event again.
  void rescan();

 private:
  bool prepare_fd(int number);
  struct Slot {
    std::atomic<std::uint64_t> tag{0};
    std::atomic<std::uint32_t> kind{0};  ///< 0 = not registered
  };
  struct Lane {
    shm::EventQueueMemory* memory = nullptr;
    std::uint32_t cursor = 0;
  };

  explicit EventQueueCore(std::shared_ptr<ContextCore> context)
      : context_(std::move(context)),
        slots_(static_cast<Slot*>(std::calloc(shm::kEventsPerQueue, sizeof(Slot))), std::free),
        waiter_(context_->options().wait) {}
  auto each_lane();
  void hand_on();
  void wake(shm::EventQueueMemory& queue, std::uint32_t how);
  void wake_whatever(shm::EventQueueMemory& queue);
  // PAIR queue.lanes: sees the lanes that add_lane() has filled in
  std::size_t lanes() const { return words::load_acquire(lane_count_); }
  Status sleep(std::uint64_t deadline_ns);

  std::shared_ptr<ContextCore> context_;
  std::uint32_t index_ = shm::kMaxEventQueues;

  std::array<Lane, kMaxLanes> lanes_;
  std::atomic<std::size_t> lane_count_{0};

  std::mutex mutex_;  ///< registrations and the descriptor
  /// By event. Zeros of the kernel's, which take memory when they are written.
  const std::unique_ptr<Slot[], void (*)(void*)> slots_;
  std::vector<std::uint32_t> free_;
  std::uint32_t used_ = 0;
  std::atomic<int> eventfd_{-1};  ///< the context's, once fd() has been called

  // The consumer's state, under consuming_: for the few loads that taking events needs.
  BriefLock consuming_;
  std::atomic<std::uint64_t> pending_bits_{0};  ///< written under consuming_, glanced at without
  std::uint32_t pending_base_ = 0;
  std::size_t next_lane_ = 0;
  Waiter waiter_;
};

/// An event and its queue, once registered. Not thread-safe: under its owner's mutex.
struct EventBinding {
  std::shared_ptr<EventQueueCore> queue;
  std::uint32_t event = shm::kNoEvent;

  /// Registers an event in the place of the one before. ENOSPC.
  Status bind(std::shared_ptr<EventQueueCore> to, EventKind kind, std::uint64_t tag) {
    auto added = to->add(kind, tag);
    if (!added) return added.error();
    unbind();
    *this = {std::move(to), *added};
    return {};
  }
  void unbind() {
    if (const auto from = std::exchange(queue, nullptr)) from->remove(event);
  }
  void post() const {
    if (queue) queue->post(event);
  }
  explicit operator bool() const { return queue != nullptr; }
};

}  // namespace clan::engine

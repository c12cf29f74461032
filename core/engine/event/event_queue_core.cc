#include "engine/event/event_queue_core.h"

#include <poll.h>

#include <algorithm>

#include "base/futex.h"
#include "clan/detail/words.h"
#include "engine/context/network.h"
#include "engine/event/queue_consumers.h"
#include "nic/wakeup.h"

namespace clan::engine {
namespace {

constexpr std::size_t kWordsPerPoll = 32;  ///< up to 2048 events in one call

}  // namespace

Result<std::shared_ptr<EventQueueCore>> EventQueueCore::create(
    std::shared_ptr<ContextCore> context) {
  std::shared_ptr<EventQueueCore> queue(new EventQueueCore(context));
  if (!queue->slots_) return Error{ENOMEM, "no memory for an event queue"};
  if (!context->usable()) return unusable_error();
  auto index = context->queues().add(queue.get());
  if (!index) return index.error();
  for (const nic::NicImage& lane : context->lane_images()) queue->add_lane(lane);
  return queue;
}

EventQueueCore::~EventQueueCore() {
  if (index_ < shm::kMaxEventQueues) context_->queues().remove(index_);
}

void EventQueueCore::add_lane(const nic::NicImage& lane) {
  std::lock_guard lock(mutex_);
  std::size_t n = lane_count_.load(std::memory_order_relaxed);
  shm::EventQueueMemory* memory = &lane.signals->queues[index_];
  for (std::size_t i = 0; i < n; ++i) {
    if (lanes_[i].memory == memory) return;
  }
  if (n == kMaxLanes) return;
  lanes_[n].memory = memory;
  // PAIR queue.lanes: publishes the lane to the consumer
  words::store_release(lane_count_, n + 1);
  if (n > 0) wake_all();  // sleepers wait for the lanes they knew
}

// Posts nobody's event: sleepers see it before they sleep, or its producer's half wakes them.
void EventQueueCore::wake_all() {
  const std::size_t n = lanes();
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t word = 0;
    (void)nic::post_event_bit(*lanes_[i].memory, shm::kEventsPerQueue - 1, &word);
    wake_whatever(*lanes_[i].memory);
  }
}

// Everyone that sleeps, whatever `sleeping` says.
void EventQueueCore::wake_whatever(shm::EventQueueMemory& queue) {
  std::uint32_t word = 0;
  const bool sleeps = nic::begin_wake(queue, &word);
  futex_wake(queue.sleeping);
  ring();
  if (sleeps) nic::end_wake(queue, word);
}

Result<std::uint32_t> EventQueueCore::add(EventKind kind, std::uint64_t tag) {
  std::lock_guard lock(mutex_);
  std::uint32_t event;
  if (!free_.empty()) {
    event = free_.back();
    free_.pop_back();
  } else if (used_ < shm::kEventsPerQueue) {
    event = used_++;
  } else {
    return Error{ENOSPC, "65536 events are registered with this queue already"};
  }
  slots_[event].tag.store(tag, std::memory_order_relaxed);
  // PAIR queue.slot: publishes the tag
  words::store_release(slots_[event].kind, static_cast<std::uint32_t>(kind));
  return event;
}

void EventQueueCore::remove(std::uint32_t event) {
  std::lock_guard lock(mutex_);
  if (event >= used_ || slots_[event].kind.exchange(0, std::memory_order_relaxed) == 0) return;
  free_.push_back(event);
}

void EventQueueCore::post(std::uint32_t event) {
  nic::post_event(context_->own_lane().image(), index_, event);
}

std::size_t EventQueueCore::poll(std::span<Event> events) {
  if (events.empty() || !context_->usable() || !pending()) return 0;
  std::lock_guard guard(consuming_);
  std::size_t n = 0;
  const std::size_t lane_count = lanes();
  std::size_t empty_lanes = 0;
  // One call never gives an event twice, though it may be posted again meanwhile: the application
  // may close what the first names. So a word that comes round again waits for the next call.
  std::uint32_t seen[kWordsPerPoll];
  std::size_t words = 0;
  while (n < events.size()) {
    // relaxed: ours, under the guard
    std::uint64_t bits = pending_bits_.load(std::memory_order_relaxed);
    if (bits == 0) {
      if (empty_lanes == lane_count) break;
      Lane& lane = lanes_[next_lane_ % lane_count];
      ++next_lane_;
      bits = nic::take_events(*lane.memory, &lane.cursor, &pending_base_);
      empty_lanes = bits == 0 ? empty_lanes + 1 : 0;
      pending_bits_.store(bits, std::memory_order_relaxed);
      if (bits == 0) continue;
      if (words == kWordsPerPoll || std::find(seen, seen + words, pending_base_) != seen + words)
        break;
      seen[words++] = pending_base_;
      continue;
    }
    if (words == 0) seen[words++] = pending_base_;  // left over from the call before
    auto bit = static_cast<std::uint32_t>(__builtin_ctzll(bits));
    pending_bits_.store(bits & (bits - 1), std::memory_order_relaxed);
    const Slot& slot = slots_[pending_base_ + bit];
    // PAIR queue.slot: sees the tag
    const std::uint32_t kind = words::load_acquire(slot.kind);
    if (kind == 0) continue;  // nobody registered it: a peer made it up
    events[n++] = {slot.tag.load(std::memory_order_relaxed), static_cast<EventKind>(kind)};
  }
  if (pending_bits_.load(std::memory_order_relaxed) != 0) hand_on();
  return n;
}

// Until `look` returns false; whether it has not.
auto EventQueueCore::each_lane() {
  return [this](const auto& look) {
    const std::size_t n = lanes();
    for (std::size_t i = 0; i < n; ++i) {
      if (!look(*lanes_[i].memory)) return false;
    }
    return true;
  };
}

// We leave with events in hand that no longer show in the shared tree.
void EventQueueCore::hand_on() {
  hand_on_events(each_lane(), pending_bits_,
                 [this](auto& queue, std::uint32_t how) { wake(queue, how); });
}

void EventQueueCore::wake(shm::EventQueueMemory& queue, std::uint32_t how) {
  how == shm::kSleepsOnFutex ? futex_wake(queue.sleeping) : ring();
}

bool EventQueueCore::pending() {
  // relaxed: a look without the guard; a thread that put bits there will take them or look again
  if (pending_bits_.load(std::memory_order_relaxed) != 0) return true;
  const std::size_t n = lanes();
  for (std::size_t i = 0; i < n; ++i) {
    if (lanes_[i].memory->root.load(std::memory_order_relaxed) != 0) return true;
  }
  return false;
}

Result<std::size_t> EventQueueCore::wait(std::span<Event> events, std::uint64_t deadline_ns) {
  if (events.empty()) return Error{EINVAL, "wait for no events"};
  for (;;) {
    if (!context_->usable()) return unusable_error();
    if (std::size_t n = poll(events); n > 0) return n;
    Status slept;
    const auto asleep = [&] {
      slept = sleep(deadline_ns);
      return slept.ok();
    };
    if (waiter_.wait([&] { return pending(); }, PeerHint{}, deadline_ns, asleep) ==
        WaitResult::kTimedOut) {
      return Error{ETIMEDOUT, "no event in time"};
    }
    if (!slept) return slept.error();
  }
}

Status EventQueueCore::sleep(std::uint64_t deadline_ns) {
  count(context_->counters().sleeps);
  int rc = 0;
  // relaxed: checked again before the sleep
  if (lanes() == 1 && !context_->packets().has_packets() &&
      eventfd_.load(std::memory_order_relaxed) < 0) {
    std::uint32_t word = 0;
    if (!prepare_on_futex(
            each_lane(), pending_bits_, eventfd_, [this] { ring(); }, &word))
      return {};
    // After a time-out `sleeping` stays, as others may sleep: one needless wake-up at most.
    rc = futex_wait(lanes_[0].memory->sleeping, word, deadline_ns);
  } else {
    auto number = fd();
    if (!number) return number.error();
    if (!prepare_fd(*number)) return {};
    pollfd p{*number, POLLIN, 0};
    rc = context_->packets().sleep_on({&p, 1}, deadline_ns);
  }
  count(context_->counters().wakeups);
  if (rc == EINTR) return Error{EINTR, "a signal arrived while waiting for events"};
  return {};  // time-outs are found by the caller, after a last look
}

Status EventQueueCore::wait_only(std::uint64_t deadline_ns) {
  return pending() ? Status() : sleep(deadline_ns);
}

Result<int> EventQueueCore::fd() {
  auto made = context_->queue_fd(index_);
  // relaxed: the context's, one for ever; what is made twice is published twice
  if (made && eventfd_.load(std::memory_order_relaxed) != *made) {
    publish_queue_fd(each_lane(), eventfd_, *made,
                     [this](auto& queue, std::uint32_t how) { wake(queue, how); });
  }
  return made;
}

bool EventQueueCore::arm_fd() {
  context_->packets().leave_to_driver();
  return arm_fd_for_sleep();
}

bool EventQueueCore::arm_fd_for_sleep() {
  auto number = fd();
  return number.ok() && prepare_fd(*number);
}

void EventQueueCore::disarm_fd() { withdraw_consumer(each_lane()); }

bool EventQueueCore::prepare_fd(int number) {
  drain_eventfd(number);
  std::uint32_t word = 0;
  return prepare_consumer(each_lane(), pending_bits_, shm::kSleepsOnFd, &word);
}

void EventQueueCore::ring() {
  // PAIR queue.fd: sees the descriptor that fd() made
  int number = eventfd_.load(std::memory_order_acquire);
  if (number >= 0) signal_eventfd(number);
}

// A producer that died in a post may have left a leaf unseen: post every leaf again, wake everyone.
void EventQueueCore::rescan() {
  std::uint32_t words;
  {
    std::lock_guard lock(mutex_);
    words = (used_ + 63) / 64;
  }
  const std::size_t n = lanes();
  for (std::size_t i = 0; i < n; ++i) {
    shm::EventQueueMemory& q = *lanes_[i].memory;
    for (std::uint32_t word = 0; word < words; ++word) {
      // relaxed: posted again below
      std::uint64_t bits = q.leaf[word].load(std::memory_order_relaxed);
      while (bits != 0) {
        auto bit = static_cast<std::uint32_t>(__builtin_ctzll(bits));
        bits &= bits - 1;
        std::uint32_t sleeping = 0;
        (void)nic::post_event_bit(q, word * 64 + bit, &sleeping);
      }
    }
    wake_whatever(q);
  }
}

}  // namespace clan::engine

namespace clan {

Result<EventQueue> EventQueue::create(Context& context) {
  auto core = engine::EventQueueCore::create(context.core());
  if (!core) return core.error();
  return EventQueue(std::move(*core));
}

std::size_t EventQueue::poll(std::span<Event> events) { return core_->poll(events); }
void EventQueue::fetch() { core_->context().packets().fetch(); }

Result<std::size_t> EventQueue::wait(std::span<Event> events, std::int64_t timeout_ms) {
  return core_->wait(events, deadline_after_ms(timeout_ms));
}

Result<std::uint32_t> EventQueue::add_user(std::uint64_t tag) {
  return core_->add(EventKind::kUser, tag);
}
void EventQueue::post_user(std::uint32_t event) { core_->post(event); }
void EventQueue::remove_user(std::uint32_t event) { core_->remove(event); }

Result<int> EventQueue::fd() { return core_->fd(); }
bool EventQueue::arm_fd() { return core_->arm_fd(); }
bool EventQueue::arm_fd_for_sleep() { return core_->arm_fd_for_sleep(); }
void EventQueue::disarm_fd() { core_->disarm_fd(); }
int EventQueue::packets_fd() {
  engine::Network* const network = core_->context().network();
  return network == nullptr ? -1 : network->node().descriptor();
}
bool EventQueue::arm_packets() {
  engine::Network* const network = core_->context().network();
  return network == nullptr || network->node().arm_descriptor();
}
Status EventQueue::sleep(std::span<pollfd> fds, std::int64_t timeout_ms) {
  if (fds.empty() || fds.size() > kMostFds) return Error{EINVAL, "sleep on one or two descriptors"};
  engine::ContextCore& context = core_->context();
  engine::count(context.counters().sleeps);
  const int rc = context.packets().sleep_on(fds, deadline_after_ms(timeout_ms));
  engine::count(context.counters().wakeups);
  switch (rc) {
    case 0: return {};
    case ETIMEDOUT: return Error{ETIMEDOUT, "nothing in time"};
    default: return Error{EINTR, "a signal arrived while asleep"};
  }
}
void EventQueue::ring_fd() { core_->ring(); }

}  // namespace clan

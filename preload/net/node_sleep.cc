// Node: which thread polls the network, and how threads sleep on it.
#include <clan/detail/clock.h>

#include <array>
#include <chrono>
#include <mutex>

#include "net/node.h"

namespace clan::preload {
namespace {

// A thread of the program polls the network if another has done so this recently, or so often in a
// nap.
constexpr std::uint64_t kJustNowNs = 100'000;
constexpr std::uint32_t kLooks = 4;
constexpr std::uint64_t kBetweenNs = 50'000;  ///< looks of one that sends or receives
constexpr std::int64_t kNapMs = 1;

}  // namespace

bool Node::look() {
  // relaxed: hints, of which the thread that serves makes the best
  looked_ns_.store(monotonic_ns(), std::memory_order_relaxed);
  looks_.store(looks_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return fetch();
}

void Node::look_now_and_then() {
  const std::uint64_t now = monotonic_ns();
  // relaxed: hints, as in look()
  if (now - looked_ns_.load(std::memory_order_relaxed) < kBetweenNs ||
      now - worked_ns_.load(std::memory_order_relaxed) < kBetweenNs) {
    return;
  }
  worked_ns_.store(now, std::memory_order_relaxed);  // relaxed: a hint, as in look()
  (void)fetch();
}

bool Node::fetch() {
  queue_.fetch();
  return take_events();
}

// Takes events of the queue. A thread of the program calls it.
bool Node::take_events() {
  std::array<Event, 16> events;
  const std::size_t n = queue_.poll(events);
  for (std::size_t i = 0; i < n; ++i) {
    // What is posted by hand is for that thread.
    if (events[i].kind == EventKind::kUser) {
      call(events[i].tag);
    } else if (const auto carried = find(events[i].tag)) {
      carried->pump();
    }
  }
  return n > 0;
}

bool Node::begin_sleep(pid_t thread, bool may_fetch, PacketFds* watched) {
  bool naps = false;
  {
    const std::lock_guard lock(mutex_);
    // relaxed: under the mutex, or hints
    looked_ns_.store(0, std::memory_order_relaxed);
    worked_ns_.store(0, std::memory_order_relaxed);
    const bool can = may_fetch && queue_.packets_fd() >= 0 && queue_.fd().ok();
    const bool fetches = election_.begin(thread, can, monotonic_ns());
    wake_if_wanted();
    if (!fetches) return true;
    naps = naps_;
  }
  if (arm(naps, watched)) return true;
  (void)end_sleep(thread, false);
  return false;
}

// For a thread that is going to sleep on the sockets. True: nothing lies there or in the queue, and
// what is put there wakes it. `naps`: no other thread sleeps on the queue. Else the one that serves
// does, and takes what comes into it until it has come out, as it is asked to.
bool Node::arm(bool naps, PacketFds* watched) {
  const bool all = queue_.arm_packets();
  watched->fd[watched->count++] = queue_.packets_fd();
  if (!naps) {
    queue_.post_user(called_event_);
    return all;
  }
  const bool quiet = queue_.arm_fd_for_sleep();
  if (!quiet) (void)take_events();
  watched->fd[watched->count++] = *queue_.fd();
  return all && quiet;
}

bool Node::end_sleep(pid_t thread, bool fetches) {
  {
    const std::lock_guard lock(mutex_);
    // What comes now the thread takes itself.
    if (election_.end(thread) && naps_ && fetches) queue_.disarm_fd();
    wake_if_wanted();
  }
  return fetches && fetch();
}

// Under the mutex.
void Node::wake_if_wanted() {
  if (!election_.is_wanted()) return;
  is_left_ = true;
  if (naps_) wakes_.notify_one();
}

// The serving thread calls it.
bool Node::keeps_out() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t now = monotonic_ns();
  // relaxed: hints
  const std::uint32_t looks = looks_.load(std::memory_order_relaxed);
  const bool often = has_napped_ && looks - looks_seen_ >= kLooks;
  const std::uint64_t looked = looked_ns_.load(std::memory_order_relaxed);
  looks_seen_ = looks;
  has_napped_ = looked != 0 && (often || now - looked < kJustNowNs);
  // relaxed: a hint
  if (has_napped_ || election_.is_seen_to(now, worked_ns_.load(std::memory_order_relaxed)))
    return true;
  election_.take();
  return false;
}

void Node::nap() {
  std::unique_lock lock(mutex_);
  // One has gone to sleep meanwhile. relaxed: under the mutex
  const std::uint64_t worked = worked_ns_.load(std::memory_order_relaxed);
  if (looked_ns_.load(std::memory_order_relaxed) == 0 &&
      !election_.is_seen_to(monotonic_ns(), worked)) {
    return;
  }
  is_left_ = false;
  naps_ = true;
  wakes_.wait_for(lock, std::chrono::milliseconds(kNapMs),
                  [this] { return is_left_ || !called_.empty(); });
  naps_ = false;
}

}  // namespace clan::preload

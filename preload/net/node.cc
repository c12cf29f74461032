#include "net/node.h"

#include <arpa/inet.h>
#include <clan/detail/clock.h>
#include <clan/detail/log.h>
#include <clan/stream.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>

namespace clan::preload {
namespace {

constexpr std::uint64_t kFirstDialNs = 5'000'000, kMostDialNs = 2'000'000'000;
constexpr std::int64_t kDialMs = 3000;   ///< an answer of the other host
constexpr std::uint64_t kCalledTag = 0;  ///< no connection's

// Signals are the program's threads'.
template <typename Run>
Status start_thread(void* (*run)(void*), Run* argument) {
  sigset_t all, old;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &old);
  pthread_t thread;
  const int err = ::pthread_create(&thread, nullptr, run, argument);
  ::pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (err != 0) return Error{err, "making a thread"};
  ::pthread_detach(thread);
  return {};
}

// As in "udp:HOST/SERVICE".
std::string host_of(const in6_addr& address) {
  char text[INET6_ADDRSTRLEN];
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    ::inet_ntop(AF_INET, address.s6_addr + 12, text, sizeof text);
    return text;
  }
  ::inet_ntop(AF_INET6, &address, text, sizeof text);
  return std::string("[") + text + "]";
}

}  // namespace

Node::Node(Context&& context, EventQueue&& queue, const CarrierCalls& calls)
    : context_(std::move(context)), queue_(std::move(queue)), calls_(calls) {}

Result<Node*> Node::start(const ContextOptions& options, const CarrierCalls& calls) {
  auto context = Context::create(options);
  if (!context) return context.error();
  auto queue = EventQueue::create(*context);
  if (!queue) return queue.error();
  // Never deleted: its threads end with the process.
  auto* node = new Node(std::move(*context), std::move(*queue), calls);
  if (auto s = node->run(); !s) return s.error();
  return node;
}

Status Node::run() {
  auto event = queue_.add_user(kCalledTag);
  if (!event) return event.error();
  called_event_ = *event;
  const auto serves = [](void* node) -> void* {
    static_cast<Node*>(node)->serve_all();
    return nullptr;
  };
  const auto dials = [](void* node) -> void* {
    static_cast<Node*>(node)->dial_all();
    return nullptr;
  };
  if (auto s = start_thread(serves, this); !s) return s;
  return start_thread(dials, this);
}

RemoteConnection* Node::add(const Route& names, bool client, void* socket) {
  std::unique_lock lock(mutex_);
  const std::uint64_t tag = ++last_tag_;
  lock.unlock();
  auto carried = std::make_shared<RemoteConnection>(calls_, queue_, tag, names, client, socket);
  if (!carried->open()) return nullptr;
  lock.lock();
  all_.emplace(tag, carried);
  return carried.get();
}

RemoteConnection* Node::dial(const Route& names, void* socket) {
  RemoteConnection* carried = add(names, true, socket);
  if (carried != nullptr) (void)stage(*carried);
  return carried;
}

RemoteConnection* Node::await(const Route& names, void* socket) {
  RemoteConnection* carried = add(names, false, socket);
  if (carried == nullptr) return nullptr;
  if (auto s = carried->listen(*context_); !s) {
    CLAN_INFO("connections to other hosts: %s", s.error().message().c_str());
    release(*carried);
    return nullptr;
  }
  return carried;
}

CarrierStage Node::stage(RemoteConnection& carried) {
  const CarrierStage now = carried.stage();
  if (now != CarrierStage::kMeeting || !carried.is_client()) return now;
  const std::lock_guard lock(mutex_);
  if (carried.dialling || carried.has_met || monotonic_ns() < carried.dial_at) return now;
  const auto found = all_.find(carried.tag());
  if (found == all_.end()) return now;
  carried.dialling = true;
  to_dial_.push_back(found->second);
  dials_.notify_one();
  return now;
}

void Node::release(RemoteConnection& carried) {
  // TryLockGuard it is released the thread that serves may find it done, and take it away.
  const std::shared_ptr<RemoteConnection> held = carried.shared_from_this();
  carried.release();
  carried.post();
}

std::shared_ptr<RemoteConnection> Node::find(std::uint64_t tag) {
  const std::lock_guard lock(mutex_);
  const auto found = all_.find(tag);
  return found != all_.end() ? found->second : nullptr;
}

void Node::serve_all() {
  std::array<Event, 64> events;
  while (!ends_.load(std::memory_order_relaxed)) {
    Result<std::size_t> n = std::size_t{0};
    if (keeps_out()) {
      nap();
      n = queue_.poll(events);
    } else {
      n = queue_.wait(events, time_left_ms());
    }
    if (!n && n.error().err != ETIMEDOUT && n.error().err != EINTR) return;
    for (std::size_t i = 0; n && i < *n; ++i) serve(events[i].tag);
    serve_called();
    serve_due();
  }
}

// The thread that serves is to see to it: another one has taken its event.
void Node::call(std::uint64_t tag) {
  const std::lock_guard lock(mutex_);
  if (tag != kCalledTag) called_.insert(tag);
  if (called_.empty()) return;
  naps_ ? wakes_.notify_one() : queue_.post_user(called_event_);
}

void Node::serve_called() {
  std::unordered_set<std::uint64_t> called;
  {
    const std::lock_guard lock(mutex_);
    called.swap(called_);
  }
  for (const std::uint64_t tag : called) serve(tag);
}

void Node::serve(std::uint64_t tag) {
  const auto carried = find(tag);
  if (!carried || ends_.load(std::memory_order_relaxed)) return;
  const std::uint64_t at = carried->serve();
  if (carried->is_done()) {
    due_.erase(tag);
    const std::lock_guard lock(mutex_);
    all_.erase(tag);
    return;
  }
  at != 0 ? (void)(due_[tag] = at) : (void)due_.erase(tag);
}

void Node::serve_due() {
  const std::uint64_t now = monotonic_ns();
  std::array<std::uint64_t, 64> tags;
  std::size_t n = 0;
  for (const auto& [tag, at] : due_) {
    if (at <= now && n < tags.size()) tags[n++] = tag;
  }
  for (std::size_t i = 0; i < n; ++i) serve(tags[i]);
}

std::int64_t Node::time_left_ms() const {
  std::uint64_t first = ~std::uint64_t{0};
  for (const auto& [tag, at] : due_) first = std::min(first, at);
  if (due_.empty()) return -1;
  const std::uint64_t now = monotonic_ns();
  return first <= now ? 0 : static_cast<std::int64_t>((first - now) / 1'000'000 + 1);
}

void Node::dial_all() {
  std::unique_lock lock(mutex_);
  for (;;) {
    dials_.wait(lock, [&] { return !to_dial_.empty(); });
    const auto carried = std::move(to_dial_.front());
    to_dial_.pop_front();
    if (ends_.load(std::memory_order_relaxed)) continue;
    dials_now_ = true;
    lock.unlock();
    dial_one(*carried);
    lock.lock();
    dials_now_ = carried->dialling = false;
  }
}

void Node::dial_one(RemoteConnection& carried) {
  if (carried.stage() != CarrierStage::kMeeting) return;
  const std::string service =
      "udp:" + host_of(carried.names().remote.address) + "/" + carried.service();
  auto stream = Stream::connect(*context_, service, kDialMs);
  if (stream) {
    {
      const std::lock_guard lock(mutex_);
      carried.has_met = true;
    }
    return carried.meet(std::move(*stream));
  }
  // Refused: the program at the other end has not looked yet, or has no carrier.
  const int err = stream.error().err;
  if (err != ECONNREFUSED && err != ETIMEDOUT) {
    CLAN_INFO("a connection to another host stays on TCP: %s", stream.error().message().c_str());
    return carried.fail();
  }
  const std::lock_guard lock(mutex_);
  carried.dial_wait_ns = std::min(std::max(carried.dial_wait_ns * 2, kFirstDialNs), kMostDialNs);
  carried.dial_at = monotonic_ns() + (err == ETIMEDOUT ? kMostDialNs : carried.dial_wait_ns);
}

void Node::lock() { mutex_.lock(); }

void Node::unlock() { mutex_.unlock(); }

void Node::finish(std::uint32_t ms) {
  const std::uint64_t until = monotonic_ns() + std::uint64_t{ms} * 1'000'000;
  const auto is_empty = [&] {
    const std::lock_guard lock(mutex_);
    return std::ranges::all_of(all_, [](auto& one) { return one.second->is_quiet(); });
  };
  const timespec nap{0, 200'000};
  while (!is_empty() && monotonic_ns() < until) ::nanosleep(&nap, nullptr);
  ends_.store(true, std::memory_order_relaxed);
  const auto carries = [&] {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(all_, [](auto& one) { return one.second->has_moved(); });
  };
  const auto is_dialling = [&] {
    const std::lock_guard lock(mutex_);
    return dials_now_;
  };
  // An answer that is waited for is nobody's any more.
  if (!carries() && is_dialling()) return;
  while (is_dialling() && monotonic_ns() < until) ::nanosleep(&nap, nullptr);
  // It waits until what has been sent is acknowledged.
  if (!is_dialling()) context_.reset();
}

}  // namespace clan::preload

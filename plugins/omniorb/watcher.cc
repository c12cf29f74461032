#include "watcher.h"

#include <clan/detail/clock.h>

#include <array>
#include <cerrno>
#include <utility>

namespace clan::orb {
namespace {

constexpr std::int64_t kTickMs = 1;
constexpr int kIdleTicks = 50;  ///< without a call, until ticks stop

}  // namespace

Result<std::shared_ptr<Watcher>> Watcher::create(Context& context) {
  auto queue = EventQueue::create(context);
  if (!queue) return queue.error();
  auto poke = queue->add_user(kPoke);
  if (!poke) return poke.error();
  return std::make_shared<Watcher>(std::move(*queue), *poke);
}

Watcher::Watcher(EventQueue queue, std::uint32_t poke) : queue_(std::move(queue)), poke_(poke) {}

bool Watcher::wait(Tell told, void* cookie) {
  std::array<Event, 64> events;
  const auto got = queue_.wait(events, ticking_ ? kTickMs : -1);
  if (!got.ok()) {
    if (got.error().err != ETIMEDOUT && got.error().err != EINTR) return false;
  } else {
    for (std::size_t i = 0; i < *got; ++i) {
      if (events[i].tag != kPoke) event(events[i].tag, told, cookie);
    }
  }
  tell_listed(told, cookie);
  if (ticking_ && monotonic_ns() >= next_tick_ns_) tick();
  return true;
}

// --- the tables ----------------------------------------------------------------------------------

std::uint64_t Watcher::add(const std::shared_ptr<Channel>& channel) {
  std::uint64_t id;
  {
    std::lock_guard lock(mutex_);
    id = ++last_id_;
    channels_.emplace(id, channel);
  }
  if (auto s = channel->stream_.register_with(queue_, id); !s) {
    std::lock_guard lock(mutex_);
    channels_.erase(id);
    return 0;
  }
  // until the ORB asks; an event that has come already finds it idle
  channel->stream_.pause_events();
  return id;
}

void Watcher::remove(std::uint64_t id) {
  std::shared_ptr<Channel> channel;  // ends outside the lock
  {
    std::lock_guard lock(mutex_);
    const auto found = channels_.find(id);
    if (found == channels_.end()) return;
    channel = std::move(found->second);
    channels_.erase(found);
    std::erase(listed_, channel);  // there may be no tick any more
  }
  channel->stream_.unregister();
}

std::shared_ptr<Channel> Watcher::find(std::uint64_t id) {
  std::lock_guard lock(mutex_);
  const auto found = channels_.find(id);
  return found == channels_.end() ? nullptr : found->second;
}

// --- events --------------------------------------------------------------------------------------

void Watcher::event(std::uint64_t id, Tell told, void* cookie) {
  const auto channel = find(id);
  if (!channel) return;
  channel->telling_ = true;
  if (channel->take_event()) told(cookie, channel->connection_);
  channel->telling_ = false;
}

void Watcher::put(std::vector<std::uint64_t>* list, std::uint64_t id) {
  {
    std::lock_guard lock(mutex_);
    list->push_back(id);
    any_put_ = true;
  }
  poke();
}

void Watcher::tell_listed(Tell told, void* cookie) {
  if (!any_put_) return;
  std::vector<std::uint64_t> buffered, again;
  {
    std::lock_guard lock(mutex_);
    any_put_ = false;
    buffered.swap(buffered_);
    again.swap(again_);
  }
  for (const std::uint64_t id : again) event(id, told, cookie);
  for (const std::uint64_t id : buffered) {
    const auto channel = find(id);
    if (!channel) continue;
    channel->telling_ = true;
    if (channel->take_buffered_event()) told(cookie, channel->connection_);
    channel->telling_ = false;
  }
}

// --- ticks ---------------------------------------------------------------------------------------

void Watcher::list(const std::shared_ptr<Channel>& channel) {
  bool asleep;
  {
    std::lock_guard lock(mutex_);
    if (!channels_.contains(channel->id_) || channel->listed_.exchange(true)) return;
    channel->seen_turn_ = 0;
    listed_.push_back(channel);
    asleep = !ticking_.exchange(true);
  }
  if (asleep) poke();
}

// Arms those that have been in one call since the last tick, forgets those that are in none. One
// that has ended meanwhile is not kept: it would keep this watcher, and that the engine.
void Watcher::tick() {
  next_tick_ns_ = monotonic_ns() + kTickMs * 1'000'000;
  std::vector<std::shared_ptr<Channel>> listed;
  {
    std::lock_guard lock(mutex_);
    listed.swap(listed_);
    idle_ticks_ = listed.empty() ? idle_ticks_ + 1 : 0;
    if (idle_ticks_ >= kIdleTicks) ticking_ = false;
  }
  for (auto& channel : listed) {
    const std::uint32_t turn = channel->turn_.load(std::memory_order_relaxed);  // relaxed: a hint
    const bool wanted = channel->state_ == Channel::kWanted;
    if (wanted && turn != channel->seen_turn_) {
      channel->seen_turn_ = turn;
      std::lock_guard lock(mutex_);
      if (channels_.contains(channel->id_)) listed_.push_back(std::move(channel));
      continue;
    }
    channel->listed_ = false;
    if (wanted) {
      channel->arm(Channel::kWanted);
    } else if (channel->state_ == Channel::kWanted) {
      list(channel);  // since we looked, by a thread that saw it listed
    }
  }
}

}  // namespace clan::orb

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

bool Watcher::wait(Channel::Tell told, void* cookie) {
  std::array<Event, 64> events;
  const auto got = queue_.wait(events, ticking_ ? kTickMs : -1);
  if (!got.ok()) {
    if (got.error().err != ETIMEDOUT && got.error().err != EINTR) return false;
  } else {
    for (std::size_t i = 0; i < *got; ++i) {
      // none for kPoke
      if (const auto channel = find(events[i].tag)) channel->on_event(told, cookie);
    }
  }
  if (any_to_look_at_) {
    std::vector<std::uint64_t> ids;
    {
      std::lock_guard lock(mutex_);
      any_to_look_at_ = false;
      ids.swap(to_look_at_);
    }
    for (const std::uint64_t id : ids) {
      if (const auto channel = find(id)) channel->look(told, cookie);
    }
  }
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

void Watcher::look_at(std::uint64_t id) {
  {
    std::lock_guard lock(mutex_);
    to_look_at_.push_back(id);
    any_to_look_at_ = true;
  }
  poke();
}

// --- ticks ---------------------------------------------------------------------------------------

void Watcher::list(const std::shared_ptr<Channel>& channel) {
  bool asleep;
  {
    std::lock_guard lock(mutex_);
    if (!channels_.contains(channel->id_)) return;
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
    const WatchChange change = channel->watch_.take(WatchEvent::kTick);
    if (change.has(kListed)) {
      std::lock_guard lock(mutex_);
      if (channels_.contains(channel->id_)) listed_.push_back(std::move(channel));
    } else if (change.enters(kArmed)) {
      channel->arm();
    }
  }
}

// --- ActiveCollection ----------------------------------------------------------------------------

void ActiveCollection::Monitor(Channel::Tell tell, void* cookie) {
  for (;;) {
    std::unique_lock lock(mutex_);
    const std::shared_ptr<Watcher> watcher = count_ == 0 || stopped_ ? nullptr : watcher_;
    lock.unlock();
    if (!watcher || !watcher->wait(tell, cookie)) return;
  }
}

_CORBA_Boolean ActiveCollection::isEmpty() const {
  std::lock_guard lock(mutex_);
  return count_ == 0 || stopped_;
}

void ActiveCollection::deactivate() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  if (watcher_) watcher_->poke();
}

bool ActiveCollection::add(Context& context, Channel& channel, omni::giopConnection* connection) {
  std::lock_guard lock(mutex_);
  if (!watcher_) {
    auto made = Watcher::create(context);
    if (!made) return false;
    watcher_ = *made;
  }
  if (!channel.watch_by(watcher_, connection)) return false;
  ++count_;
  stopped_ = false;
  return true;
}

void ActiveCollection::remove() {
  std::lock_guard lock(mutex_);
  if (--count_ == 0) watcher_->poke();  // Monitor() looks
}

void ActiveCollection::end() {
  std::lock_guard lock(mutex_);
  watcher_.reset();
}

}  // namespace clan::orb

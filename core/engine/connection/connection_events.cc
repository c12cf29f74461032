// Connection: the events that it posts to queues.
#include "engine/connection/connection.h"

namespace clan::engine {

void Connection::also_notify(std::shared_ptr<EventQueueCore> queue, std::uint32_t event) {
  std::lock_guard lock(mutex_);
  also_queue_ = std::move(queue);
  also_event_ = event;
}

Status Connection::bind(std::shared_ptr<EventQueueCore> queue, EventKind kind, std::uint64_t tag) {
  auto event = queue->add(kind, tag);
  if (!event) return event.error();
  Status s = bind_shared(queue, *event);
  if (!s) {
    queue->remove(*event);
    return s;
  }
  std::lock_guard lock(mutex_);
  owns_event_ = true;
  return {};
}

Status Connection::bind_shared(std::shared_ptr<EventQueueCore> queue, std::uint32_t event) {
  if (!may_write()) return unusable_error();
  unbind();
  auto tripwire = add_event_tripwire(queue->index(), event);
  if (!tripwire) return tripwire.error();
  {
    std::lock_guard lock(mutex_);
    event_tripwire_ = *tripwire;
    queue_ = queue;
    event_ = event;
    owns_event_ = false;
  }
  nic_.arm(*tripwire);
  // What came before the tripwire was armed. (A sender that registers is not sending meanwhile.)
  const bool room = want_room_.exchange(false, std::memory_order_relaxed) && writable(1);
  if (room || read_ready()) queue->post(event);
  return {};
}

Result<std::uint32_t> Connection::add_event_tripwire(std::uint32_t queue, std::uint32_t event) {
  // Persistent and over the whole region: records, credit and answers alike.
  return nic_.add_tripwire({region_cookie_.aperture, 0, region_cookie_.length,
                            shm::kTripOnWrite | shm::kTripPersistent, queue, event});
}

void Connection::pause_events() {
  if (event_tripwire_ != shm::kNoTripwire) nic_.disarm(event_tripwire_);
}

bool Connection::resume_events() {
  std::shared_ptr<EventQueueCore> queue;
  std::uint32_t event = 0;
  {
    std::lock_guard lock(mutex_);
    queue = queue_;
    event = event_;
  }
  if (!queue) return read_ready();
  nic_.arm(event_tripwire_);
  const bool readable_now = read_ready();
  // Room may have come while nobody listened; an event is a hint.
  // relaxed: see bind_shared
  if (want_room_.exchange(false, std::memory_order_relaxed) || readable_now) queue->post(event);
  return readable_now;
}

void Connection::unbind() {
  if (!context_->usable()) return;
  std::shared_ptr<EventQueueCore> queue;
  std::uint32_t event = 0;
  bool owned = false;
  {
    std::lock_guard lock(mutex_);
    if (!queue_) return;
    queue = std::move(queue_);
    queue_.reset();
    event = event_;
    owned = owns_event_;
  }
  nic_.remove_tripwire(event_tripwire_);
  event_tripwire_ = shm::kNoTripwire;
  if (owned) queue->remove(event);
}

}  // namespace clan::engine

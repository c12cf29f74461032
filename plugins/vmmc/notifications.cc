// Notifications (SHRIMP, 3.3 and 5): they are queued at their buffer; one thread, or those that
// poll, run the handlers.
#include <cstring>

#include "objects.h"

using namespace clan::vmmc;

namespace {

constexpr std::size_t kMostPending = 4096;  // of a buffer; further ones are counted

// Under vmmc::mutex.
void list_if_due(const std::shared_ptr<vmmc_buffer>& buffer) {
  if (buffer->listed || !buffer->has_to_run()) return;
  buffer->listed = true;
  buffer->v->ready.push_back(buffer);
}

}  // namespace

void vmmc::accept(std::span<const std::byte> message) {
  NoticeRecord record;
  const bool whole = message.size() == sizeof record;
  if (whole) std::memcpy(&record, message.data(), sizeof record);
  std::lock_guard lock(mutex);
  const auto at = whole ? buffers.find(record.key) : buffers.end();
  // One that is not exported any more may have been notified before.
  if (whole && at == buffers.end() && record.key != 0) return count(page().ignored);
  if (at == buffers.end() || record.offset > at->second->region().size() ||
      record.bytes > at->second->region().size() - record.offset) {
    return count(page().hostile);
  }
  vmmc_buffer& buffer = *at->second;
  if (buffer.handler == nullptr || buffer.state == VMMC_IGNORE || buffer.ended)
    return count(page().ignored);
  if (buffer.pending.size() >= kMostPending) {
    ++buffer.lost;
    return count(page().lost);
  }
  buffer.pending.push_back({record.offset, record.bytes});
  ++buffer.arrived;
  list_if_due(at->second);
}

bool vmmc::begin_receiving(std::uint64_t deadline_ns) {
  std::unique_lock lock(mutex);
  const auto free = [this] { return !receiving; };
  const std::int64_t ms = milliseconds_until(deadline_ns);
  if (ms < 0) {
    changed.wait(lock, free);
  } else if (!changed.wait_for(lock, std::chrono::milliseconds(ms), free)) {
    return false;
  }
  return receiving = true;
}

void vmmc::end_receiving() {
  std::lock_guard lock(mutex);
  receiving = false;
  changed.notify_all();
}

bool vmmc::take_arrivals(std::uint64_t deadline_ns) {
  if (!begin_receiving(deadline_ns)) return false;
  for (auto message = arrivals.peek(); message.ok(); message = arrivals.peek()) {
    accept(message->bytes);
    arrivals.drop();
  }
  clan::PeerIndex gone;
  while (arrivals.take_departed(&gone)) {
  }
  end_receiving();
  return true;
}

void vmmc::await_arrivals(std::uint64_t deadline_ns) {
  if (!begin_receiving(deadline_ns)) return;
  if (!arrivals.spin()) (void)arrivals.sleep(milliseconds_until(deadline_ns));
  end_receiving();
}

int vmmc::run_handlers() {
  int n = 0;
  std::unique_lock lock(mutex);
  // Only those listed now: a buffer whose handler already runs stays in the list.
  for (std::size_t turns = ready.size(); turns > 0 && !blocked; --turns) {
    const std::shared_ptr<vmmc_buffer> buffer = std::move(ready.front());
    ready.pop_front();
    buffer->listed = false;
    if (buffer->runner) list_if_due(buffer);
    while (!buffer->runner && buffer->has_to_run() && !blocked) {
      const vmmc_buffer::Arrival arrival = buffer->pending.front();
      buffer->pending.pop_front();
      vmmc_notification_t what{buffer->region().data() + arrival.offset, arrival.offset,
                               arrival.bytes, std::exchange(buffer->lost, 0)};
      vmmc_buffer::Place place;
      if (arrival.bytes > 0 && !buffer->redirected.empty() &&
          buffer->redirected.front().bytes >= arrival.bytes) {
        place = buffer->redirected.front();
        buffer->redirected.pop_front();
      }
      buffer->runner = std::this_thread::get_id();
      lock.unlock();
      if (place.address != nullptr) {
        std::memcpy(place.address, what.address, arrival.bytes);
        what.address = place.address;
      }
      buffer->handler(buffer.get(), &what, buffer->context);
      count(page().delivered);
      ++n;
      lock.lock();
      buffer->runner.reset();
      changed.notify_all();
    }
    list_if_due(buffer);
  }
  return n;
}

void vmmc::run() {
  for (;;) {
    (void)take_arrivals(clan::kNoDeadline);
    if (clan::words::load_acquire(ends))
      return;  // after the arrivals, which may consume its wake()
    (void)run_handlers();
    await_arrivals(clan::kNoDeadline);
  }
}

void vmmc::nudge() { polled ? arrivals.ring_fd() : arrivals.wake(); }

extern "C" CLAN_EXPORT int vmmc_notifications(vmmc_buffer_t* buffer, int state) {
  if (const int rc = check(buffer); rc != 0) return rc;
  if (state < VMMC_IGNORE || state > VMMC_DELIVER) return -EINVAL;
  vmmc_t& v = *buffer->v;
  {
    std::lock_guard lock(v.mutex);
    buffer->state = static_cast<vmmc_state_t>(state);
    if (state == VMMC_IGNORE) buffer->pending.clear();
    list_if_due(v.buffers.at(buffer->aperture->cookie().key));
  }
  if (state == VMMC_DELIVER) v.nudge();
  return 0;
}

extern "C" CLAN_EXPORT int vmmc_block(vmmc_t* v) {
  if (const int rc = check(v); rc != 0) return rc;
  std::lock_guard lock(v->mutex);
  v->blocked = true;
  return 0;
}

extern "C" CLAN_EXPORT int vmmc_unblock(vmmc_t* v) {
  if (const int rc = check(v); rc != 0) return rc;
  {
    std::lock_guard lock(v->mutex);
    v->blocked = false;
  }
  v->nudge();
  return 0;
}

extern "C" CLAN_EXPORT int vmmc_poll(vmmc_t* v) {
  if (const int rc = check(v); rc != 0) return rc;
  if (!v->polled) return -EOPNOTSUPP;
  int n = 0;
  for (;;) {
    (void)v->take_arrivals(0);
    n += v->run_handlers();
    if (!clan::words::load_acquire(v->has_fd)) return n;
    if (!v->begin_receiving(0)) return n;
    const bool armed = v->arrivals.arm_fd();
    v->end_receiving();
    if (armed) return n;
  }
}

extern "C" CLAN_EXPORT int vmmc_fd(vmmc_t* v) {
  if (const int rc = check(v); rc != 0) return rc;
  if (!v->polled) return -EOPNOTSUPP;
  auto fd = v->arrivals.fd();
  if (!fd) return -fd.error().err;
  clan::words::store_release(v->has_fd, true);
  v->nudge();  // what has come before
  return *fd;
}

namespace {

// Under vmmc::mutex. Checks for a notification that has arrived, and whose handler has run if due.
bool has_news(const vmmc_buffer& buffer) {
  return buffer.arrived != buffer.told && !buffer.runner &&
         (!buffer.has_to_run() || buffer.v->blocked);
}

}  // namespace

extern "C" CLAN_EXPORT int vmmc_suspend(vmmc_buffer_t* buffer, int64_t timeout_ms) {
  if (const int rc = check(buffer); rc != 0) return rc;
  vmmc_t& v = *buffer->v;
  const std::uint64_t deadline_ns = clan::deadline_after_ms(timeout_ms);
  const std::thread::id me = std::this_thread::get_id();
  std::unique_lock lock(v.mutex);
  for (;;) {
    if (me == v.thread.get_id() || buffer->runner == me) return -EDEADLK;
    if (has_news(*buffer)) {
      buffer->told = buffer->arrived;
      return 0;
    }
    if (deadline_ns != clan::kNoDeadline && clan::monotonic_ns() >= deadline_ns) return -ETIMEDOUT;
    const std::int64_t ms = milliseconds_until(deadline_ns);
    if (!v.polled) {
      ms < 0 ? v.changed.wait(lock) : (void)v.changed.wait_for(lock, std::chrono::milliseconds(ms));
      continue;
    }
    lock.unlock();
    const bool taken = v.take_arrivals(deadline_ns);
    if (v.run_handlers() == 0 && taken) v.await_arrivals(deadline_ns);
    lock.lock();
  }
}

extern "C" CLAN_EXPORT int vmmc_redirect(vmmc_buffer_t* buffer, void* address, size_t bytes) {
  if (const int rc = check(buffer); rc != 0) return rc;
  if (address == nullptr) return -EINVAL;
  std::lock_guard lock(buffer->v->mutex);
  buffer->redirected.push_back({static_cast<std::byte*>(address), bytes});
  return 0;
}

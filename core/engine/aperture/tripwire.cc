// Tripwires on apertures: waited for by a thread, posted to an event queue, or asked.
#include "clan/tripwire.h"

#include "base/futex.h"
#include "clan/detail/dekker.h"
#include "clan/detail/words.h"
#include "engine/aperture/aperture_core.h"

namespace clan::engine {

TripwireCore::~TripwireCore() {
  if (valid()) nic().remove_tripwire(index_);
  events_.unbind();
}

void TripwireCore::note_armed() {
  fired_when_armed_ = nic().image().signals->tripwires[index_].fired.prepare_wait();
}

void TripwireCore::fire() {
  shm::NicSignals& signals = *nic().image().signals;
  // PAIR tripwire.state: what the caller has to say precedes it; test_and_clear() sees it
  dekker::set_bits(signals.tripwire_state[index_ / 64], std::uint64_t{1} << (index_ % 64));
  signals.tripwires[index_].fired.notify_all_the_same();
  std::lock_guard lock(mutex_);
  events_.post();
}

void TripwireCore::on_link_down(const std::shared_ptr<nic::Link>& link) {
  // PAIR tripwire.watched
  if (dekker::load(watched_) == link.get() && aperture_->live()) fire();
}

}  // namespace clan::engine

namespace clan {

Tripwire& Tripwire::operator=(Tripwire&&) noexcept = default;
Tripwire::~Tripwire() = default;

Result<Tripwire> Tripwire::create(const Aperture& aperture, std::uint64_t offset,
                                  std::uint64_t length, const TripwireOptions& options) {
  if (!aperture.core()->context().usable()) return engine::unusable_error();
  nic::TripwireSpec spec;
  spec.aperture = aperture.cookie().aperture;
  spec.offset = offset;
  spec.length = length;
  spec.flags = (options.on_write ? shm::kTripOnWrite : 0) |
               (options.on_read ? shm::kTripOnRead : 0) |
               (options.persistent ? shm::kTripPersistent : 0);
  auto index = aperture.core()->nic().add_tripwire(spec);
  if (!index) return index.error();
  return Tripwire(std::make_shared<engine::TripwireCore>(aperture.core(), *index));
}

void Tripwire::arm() {
  core_->note_armed();
  if (core_->valid()) core_->nic().arm(core_->index());
}
void Tripwire::disarm() {
  if (core_->valid()) core_->nic().disarm(core_->index());
}

bool Tripwire::test_and_clear() {
  return core_->valid() && core_->nic().test_and_clear(core_->index());
}
std::uint32_t Tripwire::count() const {
  // PAIR event_count.news: sees the data behind each firing counted
  return words::load_acquire(core_->nic().image().signals->tripwires[core_->index()].fired.news);
}
Status Tripwire::wait(std::int64_t timeout_ms) {
  const std::uint64_t deadline_ns = deadline_after_ms(timeout_ms);
  EventCount& fired = core_->nic().image().signals->tripwires[core_->index()].fired;
  const std::uint32_t seen = core_->fired_when_armed_;
  while (fired.prepare_wait() == seen) {
    if (!core_->aperture_->context().usable()) return engine::unusable_error();
    if (!core_->valid()) return Error{ESTALE, "the aperture of this tripwire has been revoked"};
    // In slices, so that the end of the context is noticed without a wake-up of its own.
    const std::uint64_t until_ns = std::min(deadline_ns, monotonic_ns() + 1'000'000'000u);
    const int rc = fired.commit_wait([&](auto& news) { return futex_wait(news, seen, until_ns); });
    if (rc == EINTR) return Error{EINTR, "a signal arrived while waiting for a tripwire"};
    if (rc == ETIMEDOUT && deadline_ns != kNoDeadline && monotonic_ns() >= deadline_ns) {
      return Error{ETIMEDOUT, "the tripwire did not fire in time"};
    }
  }
  core_->note_armed();
  return {};
}
Status Tripwire::register_with(EventQueue& queue, std::uint64_t tag) {
  engine::EventBinding& events = core_->events_;
  std::lock_guard lock(core_->mutex_);
  const Status bound = events.bind(queue.core(), EventKind::kTripwire, tag);
  if (bound && core_->valid())
    core_->nic().bind_event(core_->index(), events.queue->index(), events.event);
  return bound;
}
Status Tripwire::watch(const RemoteAperture& peer) {
  nic::Link& link = peer.core()->link();
  if (core_->endpoint_.number() == 0) {
    if (auto s = core_->endpoint_.begin(core_); !s) return s;
  }
  // PAIR tripwire.watched: before the check of the link, which ends before that is reported
  dekker::announce(core_->watched_, &link);
  if (!link.alive()) core_->fire();
  return {};
}

}  // namespace clan

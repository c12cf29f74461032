#include "engine/connection/connection.h"

#include <algorithm>
#include <cstring>

#include "clan/detail/dekker.h"
#include "clan/detail/words.h"

namespace clan::engine {
namespace {

constexpr std::uint64_t kLeastKept = 8 * 1024;  ///< shorter records are copied by the link
constexpr std::size_t kMostStaging = 5;         ///< the first among them
constexpr int kMostHeelPauses = 32;

}  // namespace

ConnectionState::ConnectionState(std::shared_ptr<ContextCore> context,
                                 std::shared_ptr<nic::Link> link, nic::Nic& nic)
    : context_(std::move(context)),
      link_(std::move(link)),
      nic_(nic),
      read_waiter_(context_->options().wait),
      write_waiter_(context_->options().wait) {}

Connection::Connection(std::shared_ptr<ContextCore> context, std::shared_ptr<nic::Link> link,
                       nic::Nic& nic)
    : ConnectionState(std::move(context), std::move(link), nic) {}

// --- producer ------------------------------------------------------------------------------------

std::uint64_t Connection::load_credit() {
  auto& word = *reinterpret_cast<std::atomic<std::uint64_t>*>(region_.data());
  // PAIR ring.credit: the peer has finished reading the lines before it
  return words::load_acquire(word);
}

// Where a record may go that does not simply follow the last one.
int Connection::plan_on(std::uint64_t payload, shm::RingSlot* slot) {
  const std::uint64_t head = consumer_.glance();
  end_rest();
  producer_.calm = head != planned_at_;
  planned_at_ = head;
  return out_ring_.reserve(
      producer_, payload, out_ring_.lines, [this] { return load_credit(); }, slot);
}

std::byte* Connection::reserve(std::uint64_t payload) {
  const int rc = plan(payload, &slot_);
  if (rc <= 0) [[unlikely]] {
    no_room(rc);
    return nullptr;
  }
  return mapped() ? out_ring_.payload_at(remote_.mapped + kRegionRing, slot_)
                  : staging_for(payload) + shm::kRingHeadBytes;
}

bool Connection::append_staged(std::span<const std::byte> first, std::span<const std::byte> second,
                               RecordType type, Notify wakes) {
  std::byte* const room = reserve(first.size() + second.size());
  if (room == nullptr) return false;
  copy_short(room, first.data(), first.size());
  copy_short(room + first.size(), second.data(), second.size());
  commit(first.size() + second.size(), type, wakes);
  return true;
}

void Connection::add_staging() {
  const std::uint64_t size = out_ring_.max_payload() + 2 * kCacheLine;
  staging_.push_back(std::make_shared<nic::PinnedPayload>(size));
}

std::byte* Connection::staging_for(std::uint64_t payload) {
  building_ = 0;
  if (payload >= kLeastKept) {
    std::size_t i = 1;
    while (i < staging_.size() && !staging_[i]->is_free()) ++i;
    if (i == staging_.size() && i < kMostStaging) add_staging();
    if (i < staging_.size()) building_ = i;
  }
  return staging_[building_]->bytes.get();
}

void Connection::no_room(int rc) {
  if (rc < 0) reset_hostile("impossible credit");
  want_room_.store(true, std::memory_order_relaxed);  // relaxed: see bind
}

bool Connection::writable(std::uint64_t payload) {
  shm::RingProducer probe = producer_;
  shm::RingSlot slot;
  const int rc = out_ring_.reserve(
      probe, payload, out_ring_.lines, [this] { return load_credit(); }, &slot);
  return rc != 0;  // a broken ring is "writable": the attempt finds out
}

void Connection::put_ordered(std::uint64_t offset, std::uint64_t word, nic::PutOrder order) {
  (void)link_->put(remote_, offset, std::as_bytes(std::span(&word, 1)), order);
}

void Connection::notify_armed(std::uint64_t offset, std::uint64_t length) {
  (void)link_->after_access(remote_, offset, length, nic::AccessKind::kWrite);
}

void Connection::commit(std::uint64_t payload, RecordType type, Notify wakes) {
  if (!may_write()) return;
  slot_.lines = shm::lines_for(payload);  // the caller may have needed less than it reserved
  const auto head = head_of(payload, type);
  if (mapped()) return publish(slot_, head, wakes);
  put_record(payload, head);
  out_ring_.advance(producer_, slot_, out_ring_.lines);
}

// The same stores as packets: terminator, head with the payload behind it, hop.
void Connection::put_record(std::uint64_t payload, shm::RingHead head) {
  const std::uint64_t begin = out_ring_.index(slot_.position);
  const auto& staging = staging_[building_];
  std::byte* const record = staging->bytes.get();
  // The terminator, a word of zeros behind the last line, goes with the payload: nobody reads that
  // line before the head announces the record.
  const std::uint64_t bytes = slot_.lines * kCacheLine + shm::kRingHeadBytes;
  const std::uint64_t end = begin + slot_.lines;
  std::fill(record + shm::kRingHeadBytes + payload, record + bytes, std::byte{0});
  std::memcpy(record, &head.word, sizeof head.word);
  const bool several = slot_.hop != 0;
  if (several) link_->begin_batch();
  out_ring_.publish_by(slot_, head, [&](std::uint64_t index, std::uint64_t word) {
    const std::uint64_t at = kRegionRing + index * kCacheLine;
    if (index == begin) {
      (void)link_->publish(remote_, at, std::span(record, bytes),
                           building_ == 0 ? nullptr : staging);
    } else if (index != end) {
      put_ordered(at, word);
    }
  });
  if (several) link_->end_batch();
}

bool Connection::room_has_come() {
  // relaxed: see bind
  return want_room_.load(std::memory_order_relaxed) && load_credit() != producer_.consumed &&
         want_room_.exchange(false, std::memory_order_relaxed);
}

Status Connection::wait_writable(std::uint64_t payload, std::uint64_t deadline_ns) {
  return wait_control([this, payload] { return peer_gone() || writable(payload); }, deadline_ns);
}

Status Connection::finish(std::uint64_t deadline_ns) {
  if (!context_->usable()) return unusable_error();
  if (fin_sent_ || peer_gone()) return {};
  while (!append({}, {}, RecordType::kFin)) {
    if (peer_gone()) return {};
    if (auto s = wait_writable(0, deadline_ns); !s) return s;
  }
  fin_sent_ = true;
  return {};
}

// --- consumer ------------------------------------------------------------------------------------

int Connection::nothing_there(Fetch fetch) {
  if (!mapped() && fetch == Fetch::kYes) link_->progress();
  if (consumer_.head - consumer_.published >= in_ring_.keep_up()) publish_credit();
  return 0;
}

void Connection::consume(const shm::RingRecord& record) {
  ++taken_;
  if (in_ring_.consume(consumer_, in_memory_, record, [this] { return in_ring_.lines; }))
      [[unlikely]] {
    publish_credit();
  }
}

void Connection::publish_credit() {
  if (!may_write()) return;
  end_rest();
  consumer_.published = consumer_.head;
  if (remote_.mapped == nullptr) return put_ordered(0, consumer_.head, nic::PutOrder::kNoHurry);
  auto& word = *reinterpret_cast<std::atomic<std::uint64_t>*>(remote_.mapped);
  // PAIR ring.credit: we have finished reading the lines before it
  words::store_release(word, consumer_.head);
  notify(0, sizeof(std::uint64_t));
}

void Connection::answer_offer(int word, std::uint32_t bit) {
  if (remote_.mapped == nullptr)
    return reset_hostile("an offer over a link that does not map memory");
  auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(remote_.mapped + kRegionOffers);
  // PAIR offer.answer: our copy of the message is complete
  dekker::set_bits(words[word], std::uint64_t{1} << bit);
  notify(kRegionOffers, 2 * sizeof(std::uint64_t));
}

void Connection::nudge() {
  if (may_write()) notify(kRegionOffers, 2 * sizeof(std::uint64_t));
}

Status Connection::wait_readable(std::uint64_t deadline_ns) {
  // A reader on a writer's heels takes each line while it is written and slows both. So it falls
  // back a little, and further where the last wait brought several. An answer takes longer.
  if (!read_ready()) {
    heel_pauses_ = taken_ > 1 ? std::min(heel_pauses_ * 2, kMostHeelPauses) : kHeelPauses;
    for (int i = 0; i < heel_pauses_; ++i) cpu_pause();
  }
  taken_ = 0;
  return wait_for(
      read_waiter_, ring_tripwire_, [this] { return read_ready(); }, deadline_ns,
      "nothing arrived in time");
}

// --- events --------------------------------------------------------------------------------------

void Connection::also_notify(const EventBinding& events) {
  std::lock_guard lock(mutex_);
  also_ = events;
}

Status Connection::bind(std::shared_ptr<EventQueueCore> queue, EventKind kind, std::uint64_t tag) {
  if (!may_write()) return unusable_error();
  unbind();
  EventBinding events;
  if (auto s = events.bind(std::move(queue), kind, tag); !s) return s;
  auto tripwire = add_event_tripwire(events);
  if (!tripwire) {
    events.unbind();
    return tripwire.error();
  }
  {
    std::lock_guard lock(mutex_);
    event_tripwire_ = *tripwire;
    events_ = events;
  }
  nic_.arm(*tripwire);
  // What came before the tripwire was armed. (A sender that registers is not sending meanwhile.)
  const bool room = want_room_.exchange(false, std::memory_order_relaxed) && writable(1);
  if (room || read_ready()) events.post();
  return {};
}

void Connection::post_event() {
  std::lock_guard lock(mutex_);
  events_.post();
}

Result<std::uint32_t> Connection::add_event_tripwire(const EventBinding& events) {
  // Persistent and over the whole region: records, credit and answers alike.
  return nic_.add_tripwire({region_cookie_.aperture, 0, region_cookie_.length,
                            shm::kTripOnWrite | shm::kTripPersistent, events.queue->index(),
                            events.event});
}

void Connection::pause_events() {
  if (event_tripwire_ != shm::kNoTripwire) rest(event_tripwire_);
}

bool Connection::resume_events() {
  EventBinding events;
  {
    std::lock_guard lock(mutex_);
    events = events_;
  }
  if (!events) return read_ready();
  nic_.arm(event_tripwire_);
  const bool readable_now = read_ready();
  // Room may have come while nobody listened; an event is a hint.
  // relaxed: see bind
  if (want_room_.exchange(false, std::memory_order_relaxed) || readable_now) events.post();
  return readable_now;
}

void Connection::unbind() {
  if (!context_->usable()) return;
  EventBinding events;
  {
    std::lock_guard lock(mutex_);
    if (!events_) return;
    events = std::exchange(events_, {});
  }
  nic_.remove_tripwire(event_tripwire_);
  event_tripwire_ = shm::kNoTripwire;
  events.unbind();
}

}  // namespace clan::engine

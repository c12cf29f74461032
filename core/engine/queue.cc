#include "clan/queue.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "clan/memory.h"
#include "clan/tripwire.h"
#include "clan/wait.h"
#include "engine/context_core.h"
#include "shm/ring.h"

namespace clan::engine {
namespace {

constexpr std::size_t kLeastRing = shm::kMinRingLines * kCacheLine;
constexpr std::size_t kMostRing = std::size_t{1} << 30;
constexpr std::uint8_t kRecord = 1;

std::int64_t ms_until(std::uint64_t deadline_ns) {
  if (deadline_ns == kNoDeadline) return -1;
  const std::uint64_t now = monotonic_ns();
  return now >= deadline_ns ? 0
                            : static_cast<std::int64_t>((deadline_ns - now + 999'999) / 1'000'000);
}

}  // namespace

// What both sides are: a piece of memory that the other side writes, a piece of its memory that we
// write, a tripwire for sleeping and one for an event queue.
class QueueSide {
 public:
  const RdmaCookie& cookie() const { return own_->cookie(); }

  Status bind(EventQueue& queue, std::uint64_t tag) {
    auto tripwire = Tripwire::create(*own_, 0, cookie().length, {.persistent = true});
    if (!tripwire) return tripwire.error();
    if (auto s = tripwire->register_with(queue, tag); !s) return s;
    if (remote_) {
      if (auto s = tripwire->watch(*remote_); !s) return s;
    }
    event_ = std::move(*tripwire);
    event_->arm();
    event_->fire();  // whatever was there before
    return {};
  }

 protected:
  explicit QueueSide(Context& context, const QueueOptions& options)
      : context_(context.core()), options_(options), waiter_(context_->options().wait) {}

  Status export_own(Context& context, std::size_t bytes) {
    auto memory = Memory::allocate(bytes);
    if (!memory) return memory.error();
    auto aperture =
        Aperture::export_memory(context, *memory, 0, bytes, Rights::kWrite, options_.peers_uid);
    if (!aperture) return aperture.error();
    auto tripwire = Tripwire::create(*aperture, 0, bytes);
    if (!tripwire) return tripwire.error();
    memory_ = std::move(*memory);
    own_ = std::move(*aperture);
    tripwire_ = std::move(*tripwire);
    return {};
  }

  Status import_remote(const RdmaCookie& cookie, std::int64_t timeout_ms) {
    if (remote_) return Error{EISCONN, "the queue has the other side's cookie already"};
    if (!includes(cookie.rights, Rights::kWrite)) {
      return Error{EACCES, "the RDMA cookie of a queue must allow writing"};
    }
    auto remote = RemoteAperture::import(context_, cookie, timeout_ms, options_.peers_uid);
    if (!remote) return remote.error();
    remote_ = std::move(*remote);
    if (auto s = tripwire_->watch(*remote_); !s) return s;
    return event_ ? event_->watch(*remote_) : Status();
  }

  // Why nothing more will come. The first reason stays.
  Status die(Error why) {
    if (dead_.ok()) dead_ = why;
    return dead_;
  }
  Status break_off(const char* what) {
    count(context_->counters().hostile_peers);
    return die(Error{EPROTO, what});
  }
  Status check_remote() {
    if (!dead_) return dead_;
    if (!context_->usable()) return unusable_error();
    if (!remote_) return {};
    Status s = remote_->check();
    if (!s && (s.error().err == ESTALE || s.error().err == ECONNRESET)) return die(s.error());
    return s;
  }

  // The other side, if it sleeps, finds our export revoked. `poke_at`, `word`: what is there
  // already.
  void end(std::uint64_t poke_at, std::uint64_t word) {
    if (!own_ || !context_->usable()) return;
    event_.reset();
    tripwire_.reset();
    (void)own_->revoke();
    if (remote_ && remote_->check()) (void)remote_->publish(poke_at, word);
  }

  // Spins, then arms and sleeps until ready(). `ready` also answers true when the other side is
  // gone.
  template <typename Ready>
  Status wait_for(Ready&& ready, std::uint16_t peer_cpu, std::uint64_t deadline_ns) {
    for (;;) {
      if (!context_->usable()) return unusable_error();
      if (ready()) return {};
      Status s;
      switch (waiter_.wait(ready, {peer_cpu}, deadline_ns,
                           [&] { return sleep(ready, deadline_ns, &s); })) {
        case Waited::kReady: return {};
        case Waited::kTimedOut:
          return Error{ETIMEDOUT, "the other side of the queue did nothing in time"};
        case Waited::kAgain: break;
      }
      if (!s && s.error().err != ETIMEDOUT) return s;  // ETIMEDOUT: one last look, above
    }
  }

  // Whether it did.
  template <typename Ready>
  bool sleep(Ready&& ready, std::uint64_t deadline_ns, Status* status) {
    tripwire_->arm();
    const bool sleeps = !ready();
    if (sleeps) {
      count(context_->counters().sleeps);
      *status = tripwire_->wait(ms_until(deadline_ns));
      count(context_->counters().wakeups);
    }
    tripwire_->disarm();
    (void)tripwire_->test_and_clear();
    return sleeps;
  }

  std::shared_ptr<ContextCore> context_;
  QueueOptions options_;
  std::optional<Memory> memory_;
  std::optional<Aperture> own_;
  std::optional<RemoteAperture> remote_;
  std::optional<Tripwire> tripwire_;
  std::optional<Tripwire> event_;
  Status dead_;
  Waiter waiter_;
};

// --- receiver ------------------------------------------------------------------------------------

class QueueReceiverCore final : public QueueSide {
 public:
  static Result<std::unique_ptr<QueueReceiverCore>> create(Context& context, std::size_t bytes,
                                                           const QueueOptions& options) {
    if (!std::has_single_bit(bytes) || bytes < kLeastRing || bytes > kMostRing) {
      return Error{EINVAL, "the ring of a queue must be a power of two from 1 KiB to 1 GiB"};
    }
    std::unique_ptr<QueueReceiverCore> core(new QueueReceiverCore(context, options));
    if (auto s = core->export_own(context, bytes); !s) return s.error();
    core->ring_.lines = bytes / kCacheLine;
    return core;
  }
  ~QueueReceiverCore() { end(0, consumer_.published); }

  Status attach(const RdmaCookie& credit, std::int64_t timeout_ms) {
    if (credit.length < sizeof(std::uint64_t))
      return Error{EPROTO, "too short for a queue's credit"};
    if (auto s = import_remote(credit, timeout_ms); !s) return s;
    return publish_credit();
  }

  Result<std::size_t> try_receive(std::span<std::byte> buffer) {
    if (auto s = front(); !s) return s.error();
    const std::size_t n = left_;
    if (n > buffer.size()) return Error{EMSGSIZE, "the record is longer than the buffer"};
    if (n > 0) std::memcpy(buffer.data(), front_data(), n);
    consume();
    return n;
  }

  Result<std::size_t> try_read(std::span<std::byte> buffer) {
    std::size_t got = 0;
    // Empty records count too: a hostile sender can make a ring of them that has no end.
    for (std::uint64_t records = 0; got < buffer.size(); ++records) {
      if (records > ring_.lines && got == 0) return Error{EAGAIN, "nothing to read"};
      if (records > ring_.lines) break;
      if (auto s = front(); !s) {
        if (got > 0) break;
        return s.error();
      }
      const std::size_t n = std::min(left_, buffer.size() - got);
      if (n > 0) std::memcpy(buffer.data() + got, front_data(), n);
      got += n;
      left_ -= n;
      if (left_ == 0) consume();
    }
    return got;
  }

  Result<std::span<const std::byte>> peek() {
    if (auto s = front(); !s) return s.error();
    return std::span<const std::byte>(front_data(), left_);
  }

  void consume() {
    if (!have_front_) return;
    have_front_ = false;
    consumer_.advance(record_.lines);
    if (shm::ring_should_publish(ring_, consumer_)) (void)publish_credit();
  }

  Status wait(std::uint64_t deadline_ns) {
    return wait_for([this] { return have_front_ || readable() || !check_remote(); },
                    have_front_ ? 0 : record_.head.cpu(), deadline_ns);
  }

  // Runs `attempt` until it answers something else than EAGAIN.
  template <typename Attempt>
  Result<std::size_t> insist(Attempt&& attempt, std::uint64_t deadline_ns) {
    for (;;) {
      auto n = attempt();
      if (n.ok() || n.error().err != EAGAIN) return n;
      if (auto s = wait(deadline_ns); !s) return s.error();
    }
  }

 private:
  using QueueSide::QueueSide;

  bool readable() const {
    // relaxed: a glance; ring_peek acquires
    return shm::head_at(memory_->data(), ring_.index(consumer_.head))
               .load(std::memory_order_relaxed) != 0;
  }
  const std::byte* front_data() const { return record_.payload + (record_.head.length() - left_); }

  // Makes sure that there is a front record.
  Status front() {
    if (have_front_) return {};
    if (!dead_ && dead_.error().err == EPROTO) return dead_;
    for (bool last_look = false;; last_look = true) {
      const int rc = shm::ring_peek(ring_, consumer_, memory_->data(), &record_);
      if (rc < 0 || (rc > 0 && record_.head.type() != kRecord)) {
        return break_off("an impossible record in a queue");
      }
      if (rc > 0) {
        have_front_ = true;
        left_ = record_.head.length();
        return {};
      }
      if (last_look) return dead_.ok() ? Status(unusable_error()) : dead_;
      if (remote_ && consumer_.head != consumer_.published) (void)publish_credit();
      // What the other side wrote before it went is visible after check_remote().
      if (check_remote()) return Error{EAGAIN, "no record in the queue"};
    }
  }

  Status publish_credit() {
    if (!remote_) return {};
    consumer_.published = consumer_.head;
    // PAIR aperture.publish: we have finished reading the lines before it
    return remote_->publish(0, consumer_.head);
  }

  shm::RingGeometry ring_;
  shm::RingConsumer consumer_;
  shm::RingRecord record_;  ///< the front one, or the last one
  bool have_front_ = false;
  std::size_t left_ = 0;  ///< of the front record, unread
};

// --- sender --------------------------------------------------------------------------------------

class QueueSenderCore final : public QueueSide {
 public:
  static Result<std::unique_ptr<QueueSenderCore>> create(Context& context,
                                                         const QueueOptions& options) {
    std::unique_ptr<QueueSenderCore> core(new QueueSenderCore(context, options));
    if (auto s = core->export_own(context, kCacheLine); !s) return s.error();
    return core;
  }
  // The line at the tail holds the terminator: writing it again only wakes the receiver.
  ~QueueSenderCore() { end(ring_.lines == 0 ? 0 : line(producer_.tail), 0); }

  Status attach(const RdmaCookie& ring, std::int64_t timeout_ms) {
    if (!std::has_single_bit(ring.length) || ring.length < kLeastRing || ring.length > kMostRing) {
      return Error{EPROTO, "a ring of an impossible size"};
    }
    if (auto s = import_remote(ring, timeout_ms); !s) return s;
    ring_.lines = ring.length / kCacheLine;
    if (remote_->data() == nullptr) staging_.reset(new std::byte[ring_.max_payload()]);
    return {};
  }

  std::size_t max_record() const { return ring_.lines == 0 ? 0 : ring_.max_payload(); }

  Result<std::span<std::byte>> reserve(std::size_t bytes) {
    if (!remote_) return Error{ENOTCONN, "the queue has no receiver yet"};
    if (bytes > max_record()) return Error{EMSGSIZE, "a record has at most a quarter of its ring"};
    if (!dead_) return dead_.error();
    const int rc = shm::ring_reserve(
        ring_, producer_, bytes, [this] { return credit(); }, &slot_);
    if (rc < 0) return break_off("impossible credit in a queue").error();
    if (rc == 0) {
      if (auto s = check_remote(); !s) return s.error();
      return Error{EAGAIN, "no room in the queue"};
    }
    reserved_ = bytes;
    std::byte* room = remote_->data() != nullptr ? shm::payload_at(ring_, remote_->data(), slot_)
                                                 : staging_.get();
    return std::span<std::byte>(room, bytes);
  }

  Status commit(std::size_t bytes) {
    if (!remote_ || bytes > reserved_) return Error{EINVAL, "commit() of more than was reserved"};
    reserved_ = 0;
    slot_.lines = shm::lines_for(bytes);  // it may be fewer than reserved
    const auto head =
        shm::RingHead::make(static_cast<std::uint32_t>(bytes), kRecord, current_cpu_tag());
    Status s;
    if (remote_->data() == nullptr && bytes > 0) {
      s = remote_->write(line(slot_.position) + shm::kRingHeadBytes, staging_.get(), bytes);
    }
    shm::ring_publish_by(ring_, slot_, head, [&](std::uint64_t index, std::uint64_t word) {
      if (!s) return;
      if (word == 0 && remote_->data() != nullptr) {
        // relaxed: a terminator is published by the head that follows
        shm::head_at(remote_->data(), index).store(0, std::memory_order_relaxed);
        return;
      }
      // PAIR ring.head: publishes the payload, the terminator and the record at line 0 to ring_peek
      s = remote_->publish(index * kCacheLine, word);
    });
    shm::ring_advance(ring_, producer_, slot_);
    if (!s && (s.error().err == ESTALE || s.error().err == ECONNRESET)) return die(s.error());
    return s;
  }

  Status try_send(std::span<const std::byte> record) {
    auto room = reserve(record.size());
    if (!room) return room.error();
    if (!record.empty()) std::memcpy(room->data(), record.data(), record.size());
    return commit(record.size());
  }

  Status send(std::span<const std::byte> record, std::uint64_t deadline_ns) {
    for (;;) {
      Status s = try_send(record);
      if (s || s.error().err != EAGAIN) return s;
      if (s = wait(record.size(), deadline_ns); !s) return s;
    }
  }

  Result<std::size_t> write(std::span<const std::byte> bytes, std::uint64_t deadline_ns) {
    std::size_t sent = 0;
    while (sent < bytes.size()) {
      const std::size_t n = std::min({bytes.size() - sent, std::size_t{shm::kRingPiece},
                                      std::max<std::size_t>(max_record(), 1)});
      Status s = deadline_ns == 0 ? try_send(bytes.subspan(sent, n))
                                  : send(bytes.subspan(sent, n), deadline_ns);
      if (s) {
        sent += n;
      } else if (sent > 0) {
        break;
      } else {
        return s.error();
      }
    }
    return sent;
  }

  Status wait(std::size_t bytes, std::uint64_t deadline_ns) {
    if (!remote_) return Error{ENOTCONN, "the queue has no receiver yet"};
    if (bytes > max_record()) return Error{EMSGSIZE, "a record has at most a quarter of its ring"};
    return wait_for([&] { return writable(bytes) || !check_remote(); }, 0, deadline_ns);
  }

 private:
  using QueueSide::QueueSide;

  std::uint64_t line(std::uint64_t position) const { return ring_.index(position) * kCacheLine; }
  std::uint64_t credit() const {
    // PAIR aperture.publish: the receiver has finished reading the lines before it
    return reinterpret_cast<const std::atomic<std::uint64_t>*>(memory_->data())
        ->load(std::memory_order_acquire);
  }
  bool writable(std::size_t bytes) const {
    shm::RingProducer probe = producer_;
    shm::RingSlot slot;
    return shm::ring_reserve(
               ring_, probe, bytes, [this] { return credit(); }, &slot) != 0;
  }

  shm::RingGeometry ring_;
  shm::RingProducer producer_;
  shm::RingSlot slot_;
  std::size_t reserved_ = 0;
  std::unique_ptr<std::byte[]> staging_;  ///< where a record is built when the ring is not mapped
};

}  // namespace clan::engine

namespace clan {

// --- QueueReceiver -------------------------------------------------------------------------------

QueueReceiver::QueueReceiver(std::unique_ptr<engine::QueueReceiverCore> core)
    : core_(std::move(core)) {}
QueueReceiver::QueueReceiver(QueueReceiver&&) noexcept = default;
QueueReceiver& QueueReceiver::operator=(QueueReceiver&&) noexcept = default;
QueueReceiver::~QueueReceiver() = default;

Result<QueueReceiver> QueueReceiver::create(Context& context, std::size_t bytes,
                                            const QueueOptions& options) {
  auto core = engine::QueueReceiverCore::create(context, bytes, options);
  if (!core) return core.error();
  return QueueReceiver(std::move(*core));
}

const RdmaCookie& QueueReceiver::cookie() const { return core_->cookie(); }
Status QueueReceiver::attach(const RdmaCookie& credit, std::int64_t timeout_ms) {
  return core_->attach(credit, timeout_ms);
}
Result<std::size_t> QueueReceiver::try_receive(std::span<std::byte> buffer) {
  return core_->try_receive(buffer);
}
Result<std::size_t> QueueReceiver::receive(std::span<std::byte> buffer, std::int64_t timeout_ms) {
  return core_->insist([&] { return core_->try_receive(buffer); }, deadline_after_ms(timeout_ms));
}
Result<std::span<const std::byte>> QueueReceiver::peek() { return core_->peek(); }
void QueueReceiver::consume() { core_->consume(); }
Result<std::size_t> QueueReceiver::try_read(std::span<std::byte> buffer) {
  return core_->try_read(buffer);
}
Result<std::size_t> QueueReceiver::read(std::span<std::byte> buffer, std::int64_t timeout_ms) {
  return core_->insist([&] { return core_->try_read(buffer); }, deadline_after_ms(timeout_ms));
}
Status QueueReceiver::wait(std::int64_t timeout_ms) {
  return core_->wait(deadline_after_ms(timeout_ms));
}
Status QueueReceiver::register_with(EventQueue& queue, std::uint64_t tag) {
  return core_->bind(queue, tag);
}

// --- QueueSender ---------------------------------------------------------------------------------

QueueSender::QueueSender(std::unique_ptr<engine::QueueSenderCore> core) : core_(std::move(core)) {}
QueueSender::QueueSender(QueueSender&&) noexcept = default;
QueueSender& QueueSender::operator=(QueueSender&&) noexcept = default;
QueueSender::~QueueSender() = default;

Result<QueueSender> QueueSender::create(Context& context, const QueueOptions& options) {
  auto core = engine::QueueSenderCore::create(context, options);
  if (!core) return core.error();
  return QueueSender(std::move(*core));
}

Result<QueueSender> QueueSender::create(Context& context, const RdmaCookie& ring,
                                        const QueueOptions& options, std::int64_t timeout_ms) {
  auto sender = create(context, options);
  if (!sender) return sender;
  if (auto s = sender->attach(ring, timeout_ms); !s) return s.error();
  return sender;
}

const RdmaCookie& QueueSender::cookie() const { return core_->cookie(); }
Status QueueSender::attach(const RdmaCookie& ring, std::int64_t timeout_ms) {
  return core_->attach(ring, timeout_ms);
}
std::size_t QueueSender::max_record() const { return core_->max_record(); }
Status QueueSender::try_send(std::span<const std::byte> record) { return core_->try_send(record); }
Status QueueSender::send(std::span<const std::byte> record, std::int64_t timeout_ms) {
  return core_->send(record, deadline_after_ms(timeout_ms));
}
Result<std::size_t> QueueSender::try_write(std::span<const std::byte> bytes) {
  return core_->write(bytes, 0);
}
Result<std::size_t> QueueSender::write(std::span<const std::byte> bytes, std::int64_t timeout_ms) {
  return core_->write(bytes, deadline_after_ms(timeout_ms));
}
Result<std::span<std::byte>> QueueSender::reserve(std::size_t bytes) {
  return core_->reserve(bytes);
}
Status QueueSender::commit(std::size_t bytes) { return core_->commit(bytes); }
Status QueueSender::wait(std::size_t bytes, std::int64_t timeout_ms) {
  return core_->wait(bytes, deadline_after_ms(timeout_ms));
}
Status QueueSender::register_with(EventQueue& queue, std::uint64_t tag) {
  return core_->bind(queue, tag);
}

}  // namespace clan

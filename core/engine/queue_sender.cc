// QueueSender: the side of a distributed message queue that writes into the other's ring.
#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/queue_side.h"

namespace clan::engine {

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
    if (!std::has_single_bit(ring.length) || ring.length < kLeastQueueRing ||
        ring.length > kMostQueueRing) {
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
        shm::RingHead::make(static_cast<std::uint32_t>(bytes), kQueueRecord, current_cpu_tag());
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
    return words::look(*reinterpret_cast<const std::atomic<std::uint64_t>*>(memory_->data()));
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

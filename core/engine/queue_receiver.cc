// QueueReceiver: the side of a distributed message queue that has the ring.
#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/queue_side.h"

namespace clan::engine {

class QueueReceiverCore final : public QueueSide {
 public:
  static Result<std::unique_ptr<QueueReceiverCore>> create(Context& context, std::size_t bytes,
                                                           const QueueOptions& options) {
    if (!std::has_single_bit(bytes) || bytes < kLeastQueueRing || bytes > kMostQueueRing) {
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
      if (rc < 0 || (rc > 0 && record_.head.type() != kQueueRecord)) {
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

}  // namespace clan::engine

namespace clan {

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

}  // namespace clan

// Distributed message queues: records from one sender to one receiver through a ring in the
// receiver's memory, made of apertures and tripwires and nothing else. A building block for
// protocols of one's own; streams and message endpoints offer more (set-up, both directions, death,
// bulk).
//
//        QueueSender                                   QueueReceiver
//     +--------------+   records (write_i is in them)  +------------------+
//     |              | ------------------------------> | ring   (its      |
//     | credit (its  |                                 |         memory)  |
//     |  memory)     | <------------------------------ |                  |
//     +--------------+   lazy_read_i, now and then     +------------------+
//
// Each side owns one piece of memory and needs the cookie of the other's. They travel by any
// channel:
//
//     auto in = QueueReceiver::create(context, 65536);    auto out = QueueSender::create(context);
//     in->cookie()  ────────────────────────────────────> out->attach(cookie)
//     in->attach(cookie) <─────────────────────────────── out->cookie()
//
// Records can be read as bytes and bytes are sent as records, so each side chooses its mode. A side
// that is about to sleep arms a tripwire on the other's writes; one that polls costs the other
// nothing.
//
// Thread-safety: one thread at a time per object. Errors: ESTALE (the other side has ended the
// queue), ECONNRESET (it died; what it had sent can be received first), EPROTO (it wrote nonsense),
// ENOTCONN (before attach()), ESHUTDOWN, EINTR. After one of the first three the queue is dead.
// Source: clan-distributed-computing sections 2.1 to 2.3.
#pragma once

#include <clan/aperture.h>
#include <clan/event_queue.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace clan {

namespace engine {
class QueueReceiverCore;
class QueueSenderCore;
}  // namespace engine

struct QueueOptions {
  std::int64_t peers_uid = -1;  ///< the user of the other side; -1: our own
};

class CLAN_EXPORT QueueReceiver {
 public:
  /// A ring of `bytes`, a power of two from 1 KiB to 1 GiB. A record has at most a quarter of it.
  static Result<QueueReceiver> create(Context& context, std::size_t bytes,
                                      const QueueOptions& options = {});
  QueueReceiver(QueueReceiver&&) noexcept;
  QueueReceiver& operator=(QueueReceiver&&) noexcept;
  /// Ends the queue: the sender's calls answer ESTALE.
  ~QueueReceiver();

  /// For the sender: the ring.
  const RdmaCookie& cookie() const;
  /// Redeems the sender's cookie. Until then records arrive, but no more than fill the ring.
  Status attach(const RdmaCookie& credit, std::int64_t timeout_ms = -1);

  /// Takes one record; its size. EAGAIN; EMSGSIZE: longer than the buffer, it stays.
  Result<std::size_t> try_receive(std::span<std::byte> buffer);
  Result<std::size_t> receive(std::span<std::byte> buffer, std::int64_t timeout_ms = -1);
  /// The front record in place, valid until consume(). EAGAIN.
  Result<std::span<const std::byte>> peek();
  void consume();

  /// The same as bytes: takes what is there, up to the buffer's size. EAGAIN. Of a record read in
  /// part the rest is the front record.
  Result<std::size_t> try_read(std::span<std::byte> buffer);
  /// Waits for at least one byte.
  Result<std::size_t> read(std::span<std::byte> buffer, std::int64_t timeout_ms = -1);

  /// Until there is a record. ETIMEDOUT.
  Status wait(std::int64_t timeout_ms = -1);
  /// Posts Event{tag, kTripwire} when a record arrives and when the sender goes.
  Status register_with(EventQueue& queue, std::uint64_t tag);

 private:
  explicit QueueReceiver(std::unique_ptr<engine::QueueReceiverCore> core);
  std::unique_ptr<engine::QueueReceiverCore> core_;
};

class CLAN_EXPORT QueueSender {
 public:
  static Result<QueueSender> create(Context& context, const QueueOptions& options = {});
  /// create() and attach().
  static Result<QueueSender> create(Context& context, const RdmaCookie& ring,
                                    const QueueOptions& options = {}, std::int64_t timeout_ms = -1);
  QueueSender(QueueSender&&) noexcept;
  QueueSender& operator=(QueueSender&&) noexcept;
  /// Ends the queue: the receiver reads what is there, then its calls answer ESTALE.
  ~QueueSender();

  /// For the receiver: the word in which it says how far it has read.
  const RdmaCookie& cookie() const;
  /// Redeems the receiver's cookie.
  Status attach(const RdmaCookie& ring, std::int64_t timeout_ms = -1);
  /// The longest record. 0 before attach().
  std::size_t max_record() const;

  /// Sends one record. EAGAIN: no room; EMSGSIZE: longer than max_record().
  Status try_send(std::span<const std::byte> record);
  Status send(std::span<const std::byte> record, std::int64_t timeout_ms = -1);

  /// Sends bytes, as records of any size. How many went; EAGAIN: none.
  Result<std::size_t> try_write(std::span<const std::byte> bytes);
  /// All of them, or fewer when the time was over.
  Result<std::size_t> write(std::span<const std::byte> bytes, std::int64_t timeout_ms = -1);

  /// A record built in place (in the receiver's memory, where it is mapped): room for it, then what
  /// of it is used. EAGAIN, EMSGSIZE.
  Result<std::span<std::byte>> reserve(std::size_t bytes);
  Status commit(std::size_t bytes);

  /// Until a record of `bytes` fits. ETIMEDOUT.
  Status wait(std::size_t bytes, std::int64_t timeout_ms = -1);
  /// Posts Event{tag, kTripwire} when the receiver has made room and when it goes.
  Status register_with(EventQueue& queue, std::uint64_t tag);

 private:
  explicit QueueSender(std::unique_ptr<engine::QueueSenderCore> core);
  std::unique_ptr<engine::QueueSenderCore> core_;
};

}  // namespace clan

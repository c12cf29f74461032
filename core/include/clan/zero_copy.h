// Cookie queues and zero-copy receiving: the receiver says in advance where it wants the data, so
// that they come straight into its buffers.
//
//      ZeroCopySender                                     ZeroCopyReceiver
//                          cookie queue                   post(buffer, id)
//    1  {cookie, id}  <=================================  exports the buffer
//    2  send(bytes)   -------- RDMA write ------------->  [ buffer ]
//    3                =================================>  receive() = {id, bytes}
//                          transfer queue {id, length}    revokes the export first
//
// Both queues are Distributed message queues (queue.h): a CookieReceiver is a QueueSender with a
// memory of what it has posted, a CookieSender is a QueueReceiver. Each side makes its ends with
// create(), gives ends() to the other by any channel and redeems the other's with attach():
//
//    ends()  = { ring: of the queue this side reads,  credit: of the queue this side writes }
//
//    sender:    ring of the cookie queue,   credit of the transfer queue
//    receiver:  ring of the transfer queue, credit of the cookie queue
//
// A buffer is in one hand at any time: the peer's from post() to receive() or withdraw(), ours
// otherwise. When receive() returns, no late write of the peer can be seen in the buffer any more.
//
// Thread-safety: one thread at a time per object. Errors: those of queue.h.
// Source: clan-distributed-computing sections 2.2 and 5.2.
#pragma once

#include <clan/queue.h>
#include <clan/rdma.h>

#include <unordered_map>

namespace clan {

/// What one side gives to the other.
struct QueueEnds {
  RdmaCookie ring;
  RdmaCookie credit;
};

/// One record of a cookie queue: a buffer that waits for data.
struct PostedBuffer {
  RdmaCookie cookie;
  std::uint64_t id = 0;
};
static_assert(sizeof(PostedBuffer) == 56, "with its head one cache line of the ring");

/// The side that posts buffers.
class CLAN_EXPORT CookieReceiver {
 public:
  static Result<CookieReceiver> create(Context& context, const QueueOptions& options = {});
  const RdmaCookie& cookie() const { return queue_.cookie(); }
  Status attach(const RdmaCookie& ring, std::int64_t timeout_ms = -1);

  /// Exports the buffer and sends its cookie. `id` is the caller's, EEXIST while it is in use.
  /// EAGAIN: the queue is full. The buffer is the peer's until take_back().
  Status post(std::span<std::byte> buffer, std::uint64_t id);
  /// Ends the peer's right and gives the buffer back. ENOENT: no such id.
  Result<std::span<std::byte>> take_back(std::uint64_t id);
  /// The buffer posted under an id; empty: none.
  std::span<std::byte> find(std::uint64_t id) const;
  std::size_t posted() const { return posted_.size(); }

 private:
  CookieReceiver(std::shared_ptr<engine::ContextCore> context, QueueSender queue,
                 const QueueOptions& options)
      : context_(std::move(context)), queue_(std::move(queue)), options_(options) {}
  std::shared_ptr<engine::ContextCore> context_;
  QueueSender queue_;
  QueueOptions options_;
  std::unordered_map<std::uint64_t, Aperture> posted_;
};

/// The side that fills them.
class CLAN_EXPORT CookieSender {
 public:
  static Result<CookieSender> create(Context& context, std::size_t ring_bytes,
                                     const QueueOptions& options = {});
  const RdmaCookie& cookie() const { return queue_.cookie(); }
  Status attach(const RdmaCookie& credit, std::int64_t timeout_ms = -1);

  /// The next buffer that waits. EAGAIN.
  Result<PostedBuffer> peek();
  Result<PostedBuffer> take();
  Status wait(std::int64_t timeout_ms = -1) { return queue_.wait(timeout_ms); }
  /// Posts Event{tag, kTripwire} when a buffer has been posted.
  Status register_with(EventQueue& queue, std::uint64_t tag) {
    return queue_.register_with(queue, tag);
  }

 private:
  explicit CookieSender(QueueReceiver queue) : queue_(std::move(queue)) {}
  QueueReceiver queue_;
};

struct ZeroCopyOptions {
  std::size_t ring_bytes = 16 * 1024;  ///< of the queue that this side reads; 64 bytes per buffer
  std::int64_t peers_uid = -1;
};

/// A buffer that comes back.
struct ZeroCopyMessage {
  std::uint64_t id = 0;
  std::span<std::byte> data;  ///< the filled part of the buffer
  int status = 0;             ///< errno: the transfer failed, the buffer holds nothing of use
};

class CLAN_EXPORT ZeroCopyReceiver {
 public:
  static Result<ZeroCopyReceiver> create(Context& context, const ZeroCopyOptions& options = {});
  QueueEnds ends() const { return {transfers_.cookie(), cookies_.cookie()}; }
  Status attach(const QueueEnds& sender, std::int64_t timeout_ms = -1);

  /// Hands a buffer to the sender. See CookieReceiver::post().
  Status post(std::span<std::byte> buffer, std::uint64_t id) { return cookies_.post(buffer, id); }
  /// Takes a buffer back unused.
  Result<std::span<std::byte>> withdraw(std::uint64_t id) { return cookies_.take_back(id); }

  /// The next filled buffer, in the order sent. EAGAIN.
  Result<ZeroCopyMessage> try_receive();
  Result<ZeroCopyMessage> receive(std::int64_t timeout_ms = -1);
  /// Posts Event{tag, kTripwire} when a buffer has been filled.
  Status register_with(EventQueue& queue, std::uint64_t tag) {
    return transfers_.register_with(queue, tag);
  }

 private:
  ZeroCopyReceiver(CookieReceiver cookies, QueueReceiver transfers)
      : cookies_(std::move(cookies)), transfers_(std::move(transfers)) {}
  CookieReceiver cookies_;
  QueueReceiver transfers_;
  bool broken_ = false;
};

class CLAN_EXPORT ZeroCopySender {
 public:
  static Result<ZeroCopySender> create(Context& context, const ZeroCopyOptions& options = {});
  QueueEnds ends() const { return {cookies_.cookie(), transfers_.cookie()}; }
  Status attach(const QueueEnds& receiver, std::int64_t timeout_ms = -1);

  /// Writes one message into the peer's next buffer and says so; the memory is free when it
  /// returns. Buffers that were withdrawn are passed over. ETIMEDOUT: no buffer, nothing sent;
  /// EMSGSIZE: the next buffer is too small, it stays.
  Status send(std::span<const std::byte> message, std::int64_t timeout_ms = -1);
  /// Posts Event{tag, kTripwire} when the peer has posted a buffer.
  Status register_with(EventQueue& queue, std::uint64_t tag) {
    return cookies_.register_with(queue, tag);
  }

 private:
  ZeroCopySender(std::shared_ptr<engine::ContextCore> context, CookieSender cookies,
                 QueueSender transfers, RdmaQueue rdma, std::int64_t peers_uid)
      : context_(std::move(context)),
        cookies_(std::move(cookies)),
        transfers_(std::move(transfers)),
        rdma_(std::move(rdma)),
        peers_uid_(peers_uid) {}
  Result<int> transfer(const PostedBuffer& buffer, std::span<const std::byte> message);
  std::shared_ptr<engine::ContextCore> context_;
  CookieSender cookies_;
  QueueSender transfers_;
  RdmaQueue rdma_;
  std::int64_t peers_uid_;
};

}  // namespace clan

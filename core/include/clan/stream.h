// Streams: reliable, ordered bytes between two endpoints, with back-pressure; and listeners.
//
//   auto listener = Listener::create(context, "echo");          // server
//   auto stream = listener->accept();
//
//   auto stream = Stream::connect(context, "echo");              // client, another process
//   stream->send(bytes);
//
// It behaves as TCP: all that was sent before an orderly close arrives; then recv answers 0. A peer
// that dies is ECONNRESET, once everything it had sent has been read.
//
// Thread-safety: one thread may send while another receives; calls in the same direction must not
// overlap. Listener: any thread. Errors common to all calls: ESHUTDOWN (context ended, or forked
// child), EINTR (a signal arrived while asleep), EPROTO (the peer wrote nonsense into shared
// memory). Source: clan-distributed-computing sections 2.1 and 7.2.
#pragma once

#include <clan/context.h>
#include <clan/event_queue.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace clan {

namespace engine {
class StreamCore;
class ListenerCore;
}  // namespace engine

/// The process at the other end.
struct PeerInfo {
  NodeId node;
  pid_t pid = 0;
  uid_t uid = 0;
  const char* path = "";  ///< "shm", "udp"
  std::string address;    ///< on another host: "HOST:PORT"
};

class CLAN_EXPORT Stream {
 public:
  /// Connects to a service of `uid` (-1: our own). ECONNREFUSED: nobody offers it, or its backlog
  /// is full. EACCES: policy. EPROTONOSUPPORT: another CLAN version. ETIMEDOUT.
  static Result<Stream> connect(Context& context, const std::string& service,
                                std::int64_t timeout_ms = -1, std::int64_t uid = -1);
  /// Connects to a listener by address.
  static Result<Stream> connect(Context& context, const Address& listener,
                                std::int64_t timeout_ms = -1);
  Stream(Stream&&) noexcept = default;
  /// One that is overwritten or goes is closed, see close().
  Stream& operator=(Stream&&) noexcept = default;

  /// Sends all of `bytes`, waiting for room. Returns less only when the time is over after a part
  /// went. EPIPE: the peer has closed or we have shut down; ECONNRESET: it died; ETIMEDOUT.
  Result<std::size_t> send(std::span<const std::byte> bytes, std::int64_t timeout_ms = -1);
  /// Sends what fits now. EAGAIN when nothing does.
  Result<std::size_t> try_send(std::span<const std::byte> bytes);

  /// Receives at least one byte. 0: the peer has closed in good order.
  Result<std::size_t> recv(std::span<std::byte> buffer, std::int64_t timeout_ms = -1);
  /// Receives what is there. EAGAIN when nothing is.
  Result<std::size_t> try_recv(std::span<std::byte> buffer);

  /// Zero-copy send: contiguous room for `bytes` (at most max_reserve()) in the peer's ring, to
  /// fill and commit(). EAGAIN.
  Result<std::span<std::byte>> reserve(std::size_t bytes);
  /// What one commit() hands over one peek() shows, where nothing of it has been read before.
  void commit(std::size_t bytes);
  /// reserve(), a copy of both and commit() in one, for what is short. EAGAIN.
  Status append(std::span<const std::byte> first, std::span<const std::byte> second = {});
  /// The same for bytes that nobody waits for: on one host they wake no thread and make no event,
  /// but a thread that looks finds them.
  Status append_quietly(std::span<const std::byte> first, std::span<const std::byte> second = {});
  std::size_t max_reserve() const;
  /// Makes an event for the peer, which wakes a thread there. Does nothing between hosts.
  void nudge();

  /// Zero-copy receive: the contiguous bytes at the front of the ring, until consume(). Empty = the
  /// peer has closed. EAGAIN: nothing.
  Result<std::span<const std::byte>> peek();
  /// The same without fetching packets of other hosts, a system call: for a thread that has just
  /// done so for all its streams (EventQueue::fetch()).
  Result<std::span<const std::byte>> peek_fetched();
  void consume(std::size_t bytes);

  /// peek() has something to say.
  bool readable();
  /// The same at a glance, for a thread that polls; only peek() makes room for the sender.
  bool glance() const;
  /// Where the next record begins, for a prefetch; nothing else may be done with it.
  const void* next_record() const;
  /// The peer has closed or has gone: nothing will follow what has arrived.
  bool ended() const;
  /// Waits until peek() has something to say.
  Status wait_readable(std::int64_t timeout_ms = -1);

  /// Half-close: the peer reads what was sent, then 0. We can still receive.
  Status shutdown_send(std::int64_t timeout_ms = -1);
  /// Ends the connection for both sides, from any thread. Blocked calls return ECONNABORTED; the
  /// peer sees a reset. close() is still due.
  void abort();
  /// Has a peer on another host that has gone unnoticed, as by kill -9, found out soon, and not
  /// only after a long silence. Any thread, also without room to send. A live peer notices nothing.
  void ask();

  /// Both directions. What was sent and not read by the peer stays readable there.
  void close();

  /// Posts Event{tag, kStream} when there may be something to receive, room after try_send's
  /// EAGAIN, or the peer goes. Until close() or unregister().
  Status register_with(EventQueue& queue, std::uint64_t tag);
  void unregister();
  /// While one thread serves this stream without waiting for events, the sender need not post any.
  void pause_events();
  /// Events again. True: something has arrived meanwhile (an event for it is posted).
  bool resume_events();

  PeerInfo peer() const;

 private:
  friend class Listener;
  explicit Stream(std::shared_ptr<engine::StreamCore> core) : core_(std::move(core)) {}
  std::shared_ptr<engine::StreamCore> core_;
};

class CLAN_EXPORT Listener {
 public:
  /// Offers `service` to this user's processes (and ContextOptions::allow_uids). The name goes with
  /// the process. EADDRINUSE. An empty name: by address() only.
  static Result<Listener> create(Context& context, const std::string& service);
  Listener(Listener&&) noexcept = default;
  Listener& operator=(Listener&&) noexcept;
  ~Listener();

  Result<Stream> accept(std::int64_t timeout_ms = -1);
  /// EAGAIN when no connection waits.
  Result<Stream> try_accept();

  /// Posts Event{tag, kConnection} when a connection waits.
  Status register_with(EventQueue& queue, std::uint64_t tag);
  Address address() const;

 private:
  explicit Listener(std::shared_ptr<engine::ListenerCore> core) : core_(std::move(core)) {}
  std::shared_ptr<engine::ListenerCore> core_;
};

}  // namespace clan

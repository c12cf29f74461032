// Streams and listeners over Connection.
#include "clan/stream.h"

#include <algorithm>
#include <cstring>

#include "engine/connection/connection.h"
#include "engine/event/inbox.h"

namespace clan::engine {

// A byte stream over a Connection: records of kData, of which the front one may be read in part.
class StreamCore {
 public:
  explicit StreamCore(std::shared_ptr<Connection> connection) : c_(std::move(connection)) {
    chunk_ = std::min(c_->max_payload(), c_->mapped() ? shm::kRingPiece : kPacketsPiece);
  }

  ~StreamCore() { close(); }
  StreamCore(const StreamCore&) = delete;
  StreamCore& operator=(const StreamCore&) = delete;

  void close() {
    if (std::exchange(closed_, true)) return;
    // A full ring must not make close wait: the out-of-band close ends the stream as well.
    (void)c_->finish(0);
    c_->close();
  }

  Connection& connection() { return *c_; }
  std::size_t max_reserve() const { return c_->max_payload(); }

  Status send_error() const {
    if (!c_->context().usable()) return unusable_error();
    int reason = c_->reset_reason();
    if (reason != 0 && !closed_) return Error{reason, "the connection was reset"};
    return Error{EPIPE, "the stream is closed for sending"};
  }

  bool can_send() const {
    return !closed_ && !c_->finished() && !c_->peer_gone() && c_->context().usable();
  }

  // Sends what fits now; the count of bytes, possibly 0.
  Result<std::size_t> send_some(std::span<const std::byte> bytes) {
    std::size_t sent = 0;
    while (sent < bytes.size()) {
      if (!can_send()) {
        if (sent > 0) break;
        return send_error().error();
      }
      const std::size_t n = std::min<std::size_t>(bytes.size() - sent, chunk_);
      if (!c_->append(bytes.subspan(sent, n), {}, RecordType::kData)) break;
      sent += n;
    }
    return sent;
  }

  Status append(std::span<const std::byte> first, std::span<const std::byte> second, Notify wakes) {
    if (first.size() + second.size() > max_reserve()) [[unlikely]]
      return Error{EMSGSIZE, "more than max_reserve() at once"};
    if (!can_send()) [[unlikely]]
      return send_error();
    if (!c_->append(first, second, RecordType::kData, wakes)) [[unlikely]]
      return Error{EAGAIN, "no room to send"};
    return {};
  }

  // The front of the ring. 1 = bytes, 0 = nothing yet, -1 = end of stream or error (end_error()).
  int front(Fetch fetch = Fetch::kYes) {
    if (closed_ || !c_->context().usable()) return -1;
    if (left_ > 0) return 1;
    for (bool last_look = false;;) {
      // In place: a copy right after would stall on store forwarding.
      int rc = c_->peek(&record_, fetch);
      if (rc < 0) return -1;
      if (rc == 0) {
        if (eof_) return -1;
        if (!c_->peer_gone()) return 0;
        if (last_look) return -1;
        last_look = true;  // what it wrote before it went is visible now
        continue;
      }
      switch (static_cast<RecordType>(record_.head.type())) {
        case RecordType::kFin:
          eof_ = true;
          c_->consume(record_);
          record_ = {};
          return -1;
        case RecordType::kData:
          left_ = record_.head.length();
          front_end_ = record_.payload + left_;
          if (left_ > 0 && !eof_) return 1;
          if (left_ == 0) {  // nobody sends one, and a ring full of them would have no end
            record_ = {};
            c_->reset_hostile("an empty record");
            return -1;
          }
          c_->consume(record_);
          record_ = {};
          left_ = 0;
          continue;
        default:
          record_ = {};
          c_->reset_hostile("a record that is not a stream's");
          return -1;
      }
    }
  }

  // After front() < 0.
  Result<std::size_t> end() const;

  const std::byte* front_data() const { return front_end_ - left_; }
  std::size_t front_size() const { return left_; }

  void consume(std::size_t bytes) {
    if (closed_ || !c_->context().usable()) return;
    left_ -= std::min<std::size_t>(bytes, left_);
    if (left_ == 0 && record_.lines != 0) {
      c_->consume(record_);
      record_ = {};
    }
  }

  Result<std::size_t> try_recv(std::span<std::byte> buffer) {
    std::size_t got = 0;
    while (got < buffer.size()) {
      int rc = front();
      if (rc < 0) return got > 0 ? Result<std::size_t>(got) : end();
      if (rc == 0) {
        if (got > 0) return got;
        return Error{EAGAIN, "nothing to receive"};
      }
      const std::size_t n = std::min(left_, buffer.size() - got);
      std::memcpy(buffer.data() + got, front_data(), n);
      consume(n);
      got += n;
    }
    return got;
  }

 private:
  friend class clan::Stream;
  /// kRingPiece over packets: two trains at an MTU of 1500
  static constexpr std::uint64_t kPacketsPiece = 118 * 1024;

  std::shared_ptr<Connection> c_;
  std::uint64_t chunk_ = 0;
  shm::RingRecord record_;
  std::size_t left_ = 0;                  ///< unread bytes of record_
  const std::byte* front_end_ = nullptr;  ///< where they end
  bool eof_ = false;
  bool closed_ = false;
};

Result<std::size_t> StreamCore::end() const {
  if (!c_->context().usable()) return unusable_error();
  if (closed_) return Error{EBADF, "the stream has been closed"};
  const int reason = eof_ ? 0 : c_->reset_reason();
  if (reason != 0) return Error{reason, "the connection was reset"};
  return std::size_t{0};  // the peer has half-closed, or closed without
}

// A service endpoint: the driver thread accepts, the application takes.
class ListenerCore final : public Inbox<std::shared_ptr<Connection>> {
 public:
  explicit ListenerCore(const std::shared_ptr<ContextCore>& context)
      : Inbox(context, EventKind::kConnection, context->options().backlog) {}

  void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) override {
    if (message.type != kOobConnect) return;
    if (is_full()) return Connection::refuse(*link, message, ECONNREFUSED);
    auto connection =
        Connection::accept(context().shared_from_this(), link, message, ConnectionKind::kStream);
    if (!connection) return Connection::refuse(*link, message, connection.error().err);
    deliver(std::move(*connection));
  }
};

}  // namespace clan::engine

namespace clan {

using engine::Connection;
using engine::ConnectionKind;
using engine::StreamCore;

Result<Stream> Stream::connect(Context& context, const std::string& service,
                               std::int64_t timeout_ms, std::int64_t uid) {
  const std::uint64_t deadline = deadline_after_ms(timeout_ms);
  const uid_t owner = context.core()->owner(uid);
  auto c = Connection::connect_service(context.core(), service, owner, ConnectionKind::kStream, {},
                                       deadline);
  if (!c) return c.error();
  return Stream(std::make_shared<StreamCore>(std::move(*c)));
}

Result<Stream> Stream::connect(Context& context, const Address& listener, std::int64_t timeout_ms) {
  const std::uint64_t deadline = deadline_after_ms(timeout_ms);
  auto link = context.core()->link_to_node(listener.node, listener.uid, deadline);
  if (!link) return link.error();
  auto c = Connection::connect(context.core(), *link, listener.endpoint, ConnectionKind::kStream,
                               {}, deadline);
  if (!c) return c.error();
  return Stream(std::make_shared<StreamCore>(std::move(*c)));
}

Result<std::size_t> Stream::send(std::span<const std::byte> bytes, std::int64_t timeout_ms) {
  const std::uint64_t deadline_ns = deadline_after_ms(timeout_ms);
  std::size_t sent = 0;
  for (;;) {
    auto n = core_->send_some(bytes.subspan(sent));
    if (!n) {
      if (sent > 0) return sent;
      return n.error();
    }
    sent += *n;
    if (sent == bytes.size()) return sent;
    const std::size_t next = std::min<std::size_t>(bytes.size() - sent, core_->chunk_);
    if (auto s = core_->c_->wait_writable(next, deadline_ns); !s) {
      return sent > 0 ? Result<std::size_t>(sent) : s.error();
    }
  }
}

Result<std::size_t> Stream::try_send(std::span<const std::byte> bytes) {
  auto n = core_->send_some(bytes);
  if (n.ok() && *n == 0 && !bytes.empty()) return Error{EAGAIN, "no room to send"};
  return n;
}

Result<std::size_t> Stream::recv(std::span<std::byte> buffer, std::int64_t timeout_ms) {
  if (buffer.empty()) return std::size_t{0};
  const std::uint64_t deadline_ns = deadline_after_ms(timeout_ms);
  for (;;) {
    auto n = core_->try_recv(buffer);
    if (n.ok()) return *n;  // not `n`: a Result just made is slow to copy
    if (n.error().err != EAGAIN) return n.error();
    if (auto s = core_->c_->wait_readable(deadline_ns); !s) return s.error();
  }
}

Result<std::size_t> Stream::try_recv(std::span<std::byte> buffer) {
  return core_->try_recv(buffer);
}

Result<std::span<std::byte>> Stream::reserve(std::size_t bytes) {
  if (!core_->can_send()) return core_->send_error().error();
  if (bytes > core_->max_reserve()) return Error{EMSGSIZE, "more than max_reserve() at once"};
  std::byte* room = core_->connection().reserve(bytes);
  if (room == nullptr) return Error{EAGAIN, "no room to send"};
  return std::span<std::byte>(room, bytes);
}

void Stream::commit(std::size_t bytes) {
  if (bytes == 0) return;  // nothing is nothing
  core_->connection().commit(bytes, engine::RecordType::kData);
}

Status Stream::append(std::span<const std::byte> first, std::span<const std::byte> second) {
  return core_->append(first, second, engine::Notify::kYes);
}

Status Stream::append_quietly(std::span<const std::byte> first, std::span<const std::byte> second) {
  return core_->append(first, second, engine::Notify::kNo);
}

void Stream::nudge() {
  if (core_->connection().mapped()) core_->connection().nudge();
}

std::size_t Stream::max_reserve() const { return core_->max_reserve(); }

namespace {

Result<std::span<const std::byte>> peek_at(StreamCore& core, engine::Fetch fetch) {
  const int rc = core.front(fetch);
  if (rc == 0) return Error{EAGAIN, "nothing to receive"};
  if (rc < 0) {
    auto end = core.end();
    if (!end) return end.error();
    return std::span<const std::byte>();
  }
  return std::span<const std::byte>(core.front_data(), core.front_size());
}

}  // namespace

Result<std::span<const std::byte>> Stream::peek() { return peek_at(*core_, engine::Fetch::kYes); }
Result<std::span<const std::byte>> Stream::peek_fetched() {
  return peek_at(*core_, engine::Fetch::kNo);
}

void Stream::consume(std::size_t bytes) { core_->consume(bytes); }

bool Stream::readable() { return core_->front() != 0; }
// Without a store.
bool Stream::glance() const {
  engine::Connection& c = *core_->c_;
  return core_->left_ > 0 || !c.mapped() || c.readable() || c.peer_gone() || core_->eof_ ||
         core_->closed_ || !c.context().usable();
}
const void* Stream::next_record() const { return core_->connection().next_record(); }
bool Stream::ended() const { return core_->connection().peer_gone(); }

Status Stream::wait_readable(std::int64_t timeout_ms) {
  if (core_->front() == 0) return core_->c_->wait_readable(deadline_after_ms(timeout_ms));
  return core_->c_->context().usable() ? Status() : Status(engine::unusable_error());
}

Status Stream::shutdown_send(std::int64_t timeout_ms) {
  return core_->closed_ ? Status() : core_->c_->finish(deadline_after_ms(timeout_ms));
}

void Stream::close() {
  if (core_) core_->close();
}

Status Stream::register_with(EventQueue& queue, std::uint64_t tag) {
  return core_->connection().bind(queue.core(), EventKind::kStream, tag);
}

void Stream::abort() { core_->connection().abort(); }
void Stream::ask() { core_->connection().ask(); }
void Stream::pause_events() { core_->connection().pause_events(); }
bool Stream::resume_events() { return core_->connection().resume_events(); }

void Stream::unregister() { core_->connection().unbind(); }

PeerInfo Stream::peer() const {
  nic::Link& link = core_->connection().link();
  return {link.remote_node(), link.remote_pid(), link.remote_uid(), link.capabilities().name,
          link.remote_address()};
}

Listener& Listener::operator=(Listener&& other) noexcept {
  if (this != &other) {
    if (core_) core_->endpoint().end();
    core_ = std::move(other.core_);
  }
  return *this;
}
// The driver may hold a reference for a moment longer than the application; the name must not.
Listener::~Listener() {
  if (core_) core_->endpoint().end();
}

Result<Listener> Listener::create(Context& context, const std::string& service) {
  auto core = std::make_shared<engine::ListenerCore>(context.core());
  if (auto s = core->endpoint().offer(core, service); !s) return s.error();
  return Listener(std::move(core));
}

Result<Stream> Listener::accept(std::int64_t timeout_ms) {
  auto c = core_->take(deadline_after_ms(timeout_ms));
  if (!c) return c.error();
  return Stream(std::make_shared<StreamCore>(std::move(*c)));
}

Result<Stream> Listener::try_accept() {
  auto c = core_->try_take();
  if (!c) return c.error();
  return Stream(std::make_shared<StreamCore>(std::move(*c)));
}

Status Listener::register_with(EventQueue& queue, std::uint64_t tag) {
  return core_->bind(queue.core(), tag);
}

Address Listener::address() const { return core_->endpoint().address(); }

}  // namespace clan

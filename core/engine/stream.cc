// Streams and listeners over Connection.
#include "clan/stream.h"

#include <unistd.h>

#include <deque>

#include "engine/connection.h"

namespace clan::engine {

// A byte stream: records of kData, of which the front one may be read in part.
class StreamCore {
 public:
  explicit StreamCore(std::shared_ptr<Connection> connection) : c_(std::move(connection)) {
    chunk_ = std::min(c_->max_payload(), shm::kRingPiece);
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
      std::byte* room = c_->reserve(n);
      if (room == nullptr) break;
      std::memcpy(room, bytes.data() + sent, n);
      c_->commit(n, RecordType::kData);
      sent += n;
    }
    return sent;
  }

  Result<std::size_t> send(std::span<const std::byte> bytes, std::uint64_t deadline_ns) {
    std::size_t sent = 0;
    for (;;) {
      auto n = send_some(bytes.subspan(sent));
      if (!n) {
        if (sent > 0) return sent;
        return n.error();
      }
      sent += *n;
      if (sent == bytes.size()) return sent;
      const std::size_t next = std::min<std::size_t>(bytes.size() - sent, chunk_);
      if (auto s = c_->wait_writable(next, deadline_ns); !s) {
        return sent > 0 ? Result<std::size_t>(sent) : s.error();
      }
    }
  }

  // The front of the ring. 1 = bytes, 0 = nothing yet, -1 = end of stream or error (end_error()).
  int front() {
    if (closed_ || !c_->context().usable()) return -1;
    if (left_ > 0) return 1;
    for (bool last_look = false;;) {
      int rc = c_->peek(&record_);  // in place: a copy right after would stall on store forwarding
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
  Result<std::size_t> end() const {
    if (!c_->context().usable()) return unusable_error();
    if (closed_) return Error{EBADF, "the stream has been closed"};
    if (eof_) return std::size_t{0};
    int reason = c_->reset_reason();
    if (reason != 0) return Error{reason, "the connection was reset"};
    return std::size_t{0};  // the peer closed without half-closing first
  }

  const std::byte* front_data() const { return record_.payload + (record_.head.length() - left_); }
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

  Status wait_readable(std::uint64_t deadline_ns) {
    if (front() != 0) return c_->context().usable() ? Status() : Status(unusable_error());
    return c_->wait_readable(deadline_ns);
  }

  Result<std::size_t> recv(std::span<std::byte> buffer, std::uint64_t deadline_ns) {
    if (buffer.empty()) return std::size_t{0};
    for (;;) {
      auto n = try_recv(buffer);
      if (n.ok()) return *n;  // not `n`: a Result just made is slow to copy
      if (n.error().err != EAGAIN) return n.error();
      if (auto s = wait_readable(deadline_ns); !s) return s.error();
    }
  }

  Status shutdown_send(std::uint64_t deadline_ns) {
    return closed_ ? Status() : c_->finish(deadline_ns);
  }

  void close() {
    if (closed_) return;
    closed_ = true;
    // A full ring must not make close wait: the out-of-band close ends the stream as well.
    (void)c_->finish(0);
    c_->close();
  }

 private:
  std::shared_ptr<Connection> c_;
  std::uint64_t chunk_ = 0;
  shm::RingRecord record_;
  std::size_t left_ = 0;  ///< unread bytes of record_
  bool eof_ = false;
  bool closed_ = false;
};

// A service endpoint: the driver thread accepts, the application takes.
class ListenerCore final : public OobSink, public std::enable_shared_from_this<ListenerCore> {
 public:
  ListenerCore(std::shared_ptr<ContextCore> context, std::string service)
      : context_(std::move(context)), service_(std::move(service)) {}

  ~ListenerCore() override { end(); }

  // The driver may hold a reference for a moment longer than the application; the name must not.
  void end() {
    if (!context_->usable()) return;
    std::deque<std::shared_ptr<Connection>> waiting;  // closed outside the lock
    std::shared_ptr<EventQueueCore> queue;
    {
      std::lock_guard lock(mutex_);
      if (ended_) return;
      ended_ = true;
      waiting.swap(waiting_);
      queue = std::move(queue_);
      queue_.reset();
    }
    if (!service_.empty()) context_->remove_service(service_);
    if (endpoint_ != 0) context_->endpoints().remove(endpoint_);
    if (queue) queue->remove(event_);
  }

  Status start() {
    auto endpoint = context_->add_endpoint(weak_from_this());
    if (!endpoint) return endpoint.error();
    endpoint_ = *endpoint;
    if (service_.empty()) return context_->listen_as_node();
    Status s = context_->add_service(service_, endpoint_);
    if (!s) service_.clear();
    if (s) s = context_->listen_as_node();
    return s;
  }

  void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) override {
    if (message.type != kOobConnect) return;
    std::unique_lock lock(mutex_);
    if (ended_ || waiting_.size() >= context_->options().backlog) {
      Connection::refuse(*link, message, ECONNREFUSED);
      return;
    }
    auto connection = Connection::accept(context_, link, message, ConnectionKind::kStream);
    if (!connection) {
      Connection::refuse(*link, message, connection.error().err);
      return;
    }
    waiting_.push_back(std::move(*connection));
    auto queue = queue_;
    lock.unlock();
    arrived_.notify_one();
    if (queue) queue->post(event_);
  }

  void on_link_down(const std::shared_ptr<nic::Link>&) override {
    if (!context_->usable()) arrived_.notify_all();
  }

  Result<std::shared_ptr<Connection>> accept(std::uint64_t deadline_ns) {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (!context_->usable()) return unusable_error();
      if (!waiting_.empty()) {
        auto connection = std::move(waiting_.front());
        waiting_.pop_front();
        // The queue forgets an event once it has been taken; there may be more connections than that.
        if (!waiting_.empty() && queue_) queue_->post(event_);
        return connection;
      }
      const std::uint64_t now = monotonic_ns();
      if (now >= deadline_ns) return Error{deadline_ns == 0 ? EAGAIN : ETIMEDOUT, "no connection waits"};
      const std::uint64_t nap = std::min<std::uint64_t>(deadline_ns - now, 1'000'000'000u);
      arrived_.wait_for(lock, std::chrono::nanoseconds(nap));
    }
  }

  Status bind(std::shared_ptr<EventQueueCore> queue, std::uint64_t tag) {
    auto event = queue->add(EventKind::kConnection, tag);
    if (!event) return event.error();
    std::lock_guard lock(mutex_);
    if (queue_) queue_->remove(event_);
    queue_ = std::move(queue);
    event_ = *event;
    if (!waiting_.empty()) queue_->post(event_);
    return {};
  }

  Address address() const {
    return context_->address_of(endpoint_);
  }

 private:
  std::shared_ptr<ContextCore> context_;
  std::string service_;
  std::uint32_t endpoint_ = 0;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::shared_ptr<Connection>> waiting_;
  bool ended_ = false;
  std::shared_ptr<EventQueueCore> queue_;
  std::uint32_t event_ = 0;
};

}  // namespace clan::engine

namespace clan {

using engine::Connection;
using engine::ConnectionKind;
using engine::StreamCore;

Stream::Stream(std::shared_ptr<StreamCore> core) : core_(std::move(core)) {}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&& other) noexcept {
  if (this != &other) {
    close();
    core_ = std::move(other.core_);
  }
  return *this;
}
Stream::~Stream() { close(); }

Result<Stream> Stream::connect(Context& context, const std::string& service, std::int64_t timeout_ms,
                               std::int64_t uid) {
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
  auto c = Connection::connect(context.core(), *link, listener.endpoint, ConnectionKind::kStream, {},
                               deadline);
  if (!c) return c.error();
  return Stream(std::make_shared<StreamCore>(std::move(*c)));
}

Result<std::size_t> Stream::send(std::span<const std::byte> bytes, std::int64_t timeout_ms) {
  return core_->send(bytes, deadline_after_ms(timeout_ms));
}

Result<std::size_t> Stream::try_send(std::span<const std::byte> bytes) {
  auto n = core_->send_some(bytes);
  if (n.ok() && *n == 0 && !bytes.empty()) return Error{EAGAIN, "no room to send"};
  return n;
}

Result<std::size_t> Stream::recv(std::span<std::byte> buffer, std::int64_t timeout_ms) {
  return core_->recv(buffer, deadline_after_ms(timeout_ms));
}

Result<std::size_t> Stream::try_recv(std::span<std::byte> buffer) { return core_->try_recv(buffer); }

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

std::size_t Stream::max_reserve() const { return core_->max_reserve(); }

Result<std::span<const std::byte>> Stream::peek() {
  int rc = core_->front();
  if (rc == 0) return Error{EAGAIN, "nothing to receive"};
  if (rc < 0) {
    auto end = core_->end();
    if (!end) return end.error();
    return std::span<const std::byte>();
  }
  return std::span<const std::byte>(core_->front_data(), core_->front_size());
}

void Stream::consume(std::size_t bytes) { core_->consume(bytes); }

Status Stream::wait_readable(std::int64_t timeout_ms) {
  return core_->wait_readable(deadline_after_ms(timeout_ms));
}

Status Stream::shutdown_send(std::int64_t timeout_ms) {
  return core_->shutdown_send(deadline_after_ms(timeout_ms));
}

void Stream::close() {
  if (core_) core_->close();
}

Status Stream::register_with(EventQueue& queue, std::uint64_t tag) {
  return core_->connection().bind(queue.core(), EventKind::kStream, tag);
}

void Stream::abort() { core_->connection().abort(); }
void Stream::pause_events() { core_->connection().pause_events(); }
bool Stream::resume_events() { return core_->connection().resume_events(); }

void Stream::unregister() { core_->connection().unbind(); }

PeerInfo Stream::peer() const {
  nic::Link& link = core_->connection().link();
  return {link.remote_node(), link.remote_pid(), link.remote_uid(), link.capabilities().name};
}

Listener::Listener(std::shared_ptr<engine::ListenerCore> core) : core_(std::move(core)) {}
Listener::Listener(Listener&&) noexcept = default;
Listener& Listener::operator=(Listener&& other) noexcept {
  if (this != &other) {
    if (core_) core_->end();
    core_ = std::move(other.core_);
  }
  return *this;
}
Listener::~Listener() {
  if (core_) core_->end();
}

Result<Listener> Listener::create(Context& context, const std::string& service) {
  auto core = std::make_shared<engine::ListenerCore>(context.core(), service);
  if (auto s = core->start(); !s) return s.error();
  return Listener(std::move(core));
}

Result<Stream> Listener::accept(std::int64_t timeout_ms) {
  auto c = core_->accept(deadline_after_ms(timeout_ms));
  if (!c) return c.error();
  return Stream(std::make_shared<StreamCore>(std::move(*c)));
}

Result<Stream> Listener::try_accept() {
  auto c = core_->accept(0);
  if (!c) return c.error();
  return Stream(std::make_shared<StreamCore>(std::move(*c)));
}

Status Listener::register_with(EventQueue& queue, std::uint64_t tag) {
  return core_->bind(queue.core(), tag);
}

Address Listener::address() const { return core_->address(); }

}  // namespace clan

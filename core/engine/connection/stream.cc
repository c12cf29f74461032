// Streams and listeners over Connection.
#include "clan/stream.h"

#include "engine/connection/stream_core.h"
#include "engine/event/inbox.h"

namespace clan::engine {

Result<std::size_t> StreamCore::send(std::span<const std::byte> bytes, std::uint64_t deadline_ns) {
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
      : Inbox(context, EventKind::kConnection, context->options().backlog), context_(context) {}

  void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) override {
    if (message.type != kOobConnect) return;
    if (is_full()) return Connection::refuse(*link, message, ECONNREFUSED);
    auto connection = Connection::accept(context_, link, message, ConnectionKind::kStream);
    if (!connection) return Connection::refuse(*link, message, connection.error().err);
    deliver(std::move(*connection));
  }

 private:
  const std::shared_ptr<ContextCore> context_;
};

}  // namespace clan::engine

namespace clan {

using engine::Connection;
using engine::ConnectionKind;
using engine::StreamCore;

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this != &other) {
    close();
    core_ = std::move(other.core_);
  }
  return *this;
}
Stream::~Stream() { close(); }

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
bool Stream::glance() const { return core_->glance(); }
const void* Stream::next_record() const { return core_->connection().next_record(); }
bool Stream::ended() const { return core_->connection().peer_gone(); }

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

// Message endpoints: their start and end, and the public class (clan/message.h). By steps:
// message_peers, message_send, message_receive, message_share, message_wait.
#include "engine/message/message_endpoint.h"

namespace clan::engine {
MessageEndpointCore::~MessageEndpointCore() {
  if (!service_.empty()) context_->remove_service(service_);
  if (endpoint_ != 0) context_->endpoints().remove(endpoint_);
  for (auto& peer : peers_) {
    if (!peer) continue;
    for (std::uint32_t slot = 0; slot < peer->offers.size(); ++slot) {
      if (peer->offers[slot].open) take_back(*peer, slot);
    }
    if (peer->attempt) peer->attempt->cancel();
    if (peer->connection) peer->connection->close();
  }
  if (user_queue_) user_queue_->remove(user_event_);
}

Status MessageEndpointCore::start(const std::string& service) {
  hot_.reserve(kMaxHot);  // an event that has been taken must not be lost for want of memory
  cooled_.reserve(kMaxHot);
  auto queue = EventQueueCore::create(context_);
  if (!queue) return queue.error();
  arrivals_ = *queue;
  auto event = arrivals_->add(EventKind::kConnection, kAdoptTag);
  if (!event) return event.error();
  adopt_event_ = *event;
  auto endpoint = context_->add_endpoint(weak_from_this());
  if (!endpoint) return endpoint.error();
  endpoint_ = *endpoint;
  if (!service.empty()) {
    if (auto s = context_->add_service(service, endpoint_); !s) return s;
    service_ = service;
  }
  return context_->listen_as_node();
}

Address MessageEndpointCore::address() const { return context_->address_of(endpoint_); }

}  // namespace clan::engine

namespace clan {

using engine::MessageEndpointCore;

MessageEndpoint::MessageEndpoint(std::shared_ptr<MessageEndpointCore> core)
    : core_(std::move(core)) {}

Result<MessageEndpoint> MessageEndpoint::create(Context& context, const std::string& service,
                                                const MessageOptions& options) {
  auto core = std::make_shared<MessageEndpointCore>(context.core(), options);
  if (auto s = core->start(service); !s) return s.error();
  return MessageEndpoint(std::move(core));
}

Address MessageEndpoint::address() const { return core_->address(); }
Result<PeerIndex> MessageEndpoint::connect(const Address& peer, std::int64_t timeout_ms) {
  return core_->connect(peer, deadline_after_ms(timeout_ms));
}
Result<PeerIndex> MessageEndpoint::connect(const std::string& service, std::int64_t timeout_ms,
                                           std::int64_t uid) {
  return core_->connect(service, core_->context().owner(uid), deadline_after_ms(timeout_ms));
}
Result<PeerIndex> MessageEndpoint::begin_connect(
    const std::string& service, std::span<const std::span<const std::byte>> greetings,
    std::int64_t timeout_ms, std::int64_t uid) {
  return core_->begin_connect(service, core_->context().owner(uid), greetings,
                              deadline_after_ms(timeout_ms));
}
Status MessageEndpoint::await(PeerIndex peer, std::int64_t timeout_ms) {
  return core_->await(peer, deadline_after_ms(timeout_ms));
}
Result<Address> MessageEndpoint::peer_address(PeerIndex peer) const {
  return core_->peer_address(peer);
}
bool MessageEndpoint::is_far(PeerIndex peer) const { return core_->is_far(peer); }
void MessageEndpoint::disconnect(PeerIndex peer) { core_->disconnect(peer); }
Status MessageEndpoint::send(PeerIndex to, std::span<const std::byte> message,
                             std::int64_t timeout_ms) {
  return core_->send(to, message, deadline_after_ms(timeout_ms));
}
Result<bool> MessageEndpoint::post(PeerIndex to, std::span<const std::byte> message,
                                   std::uint64_t cookie) {
  return core_->post(to, {}, message, cookie);
}
Result<bool> MessageEndpoint::post(PeerIndex to, std::span<const std::byte> header,
                                   std::span<const std::byte> message, std::uint64_t cookie) {
  return core_->post(to, header, message, cookie);
}
std::size_t MessageEndpoint::poll_sent(std::span<SendCompletion> completions) {
  return core_->poll_sent(completions);
}
Result<std::span<std::byte>> MessageEndpoint::reserve(PeerIndex to, std::size_t bytes) {
  return core_->reserve(to, bytes);
}
void MessageEndpoint::commit(PeerIndex to, std::size_t bytes) { core_->commit(to, bytes); }
std::size_t MessageEndpoint::max_eager(PeerIndex to) const { return core_->max_eager(to); }
Status MessageEndpoint::try_send(PeerIndex to, std::span<const std::byte> header,
                                 std::span<const std::byte> message) {
  return core_->try_send(to, header, message);
}
bool MessageEndpoint::quiet() const { return core_->quiet(); }
bool MessageEndpoint::spin() { return core_->spin(); }
Status MessageEndpoint::sleep(std::int64_t timeout_ms) {
  return core_->sleep_unspun(deadline_after_ms(timeout_ms));
}
Result<int> MessageEndpoint::fd() { return core_->arrivals_->fd(); }
bool MessageEndpoint::arm_fd() { return core_->arm_fd(); }
void MessageEndpoint::ring_fd() { core_->arrivals_->ring(); }
void MessageEndpoint::wake() { core_->arrivals_->wake_all(); }
Result<MessageInfo> MessageEndpoint::try_recv(std::span<std::byte> buffer) {
  return core_->try_recv(buffer);
}
Result<MessageInfo> MessageEndpoint::recv(std::span<std::byte> buffer, std::int64_t timeout_ms) {
  return core_->recv(buffer, deadline_after_ms(timeout_ms));
}
Result<IncomingMessage> MessageEndpoint::peek() { return core_->peek(); }
Result<IncomingMessage> MessageEndpoint::peek_fetched() { return core_->peek(engine::Fetch::kNo); }
Result<MessageInfo> MessageEndpoint::take(std::span<std::byte> buffer) {
  return core_->take(buffer);
}
void MessageEndpoint::drop() { core_->drop(); }
Result<SetAside> MessageEndpoint::set_aside() { return core_->set_aside(); }
Status MessageEndpoint::copy(const SetAside& message, std::uint64_t offset,
                             std::span<std::byte> buffer) {
  return core_->copy(message, offset, buffer);
}
void MessageEndpoint::finish(const SetAside& message, bool received) {
  core_->finish(message, received);
}
bool MessageEndpoint::take_departed(PeerIndex* peer, int* reason) {
  return core_->take_departed(peer, reason);
}
Status MessageEndpoint::register_with(EventQueue& queue, std::uint64_t tag) {
  return core_->bind(queue.core(), tag);
}

}  // namespace clan

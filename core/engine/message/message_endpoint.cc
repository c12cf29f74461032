// Message endpoints: start, end, waiting and the public class (clan/message.h).
#include "engine/message/message_endpoint.h"

namespace clan::engine {
MessageEndpointCore::~MessageEndpointCore() {
  endpoint_.end();
  for (auto& peer : peers_) {
    if (!peer) continue;
    end_sends(*peer, ECANCELED);
    if (peer->attempt) peer->attempt->cancel();
    if (peer->connection) peer->connection->close();
  }
  user_.unbind();
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
  return endpoint_.offer(weak_from_this(), service);
}

Address MessageEndpointCore::address() const { return endpoint_.address(); }

// --- waiting -------------------------------------------------------------------------------------

namespace {

constexpr int kHotLooks = 200;  ///< before recv() checks anything else

}  // namespace

bool MessageEndpointCore::hot_pending() const {
  for (const Peer* peer : hot_) {
    if (peer->connection->readable() || peer->connection->peer_gone()) return true;
  }
  return false;
}

bool MessageEndpointCore::something_new() {
  return hot_pending() || arrivals_->pending() || progress_sends();
}

// The peer of the next ring that will be polled.
PeerHint MessageEndpointCore::awaited() const {
  const std::uint16_t cpu =
      hot_.empty() ? 0 : hot_[next_hot_ % hot_.size()]->connection->peer_cpu();
  return {cpu, false, copied_until_ns_};
}

// Something that no event will announce, as its event has been taken already.
bool MessageEndpointCore::something_told() const {
  return front_.peer != nullptr || !sent_.empty() || !departed_.empty() || !context_->usable();
}

// Everyone becomes cold. True: sends have moved meanwhile, there is something to check.
bool MessageEndpointCore::cool() {
  std::vector<std::uint32_t> tripwires;
  std::vector<Peer*> cooled;
  cooled.swap(hot_);
  // One fence for all; a NIC at a time, as peers of other users have their own.
  for (std::size_t i = 0; i < cooled.size(); ++i) {
    cooled[i]->hot = false;
    tripwires.push_back(cooled[i]->connection->event_tripwire());
    nic::Nic& nic = cooled[i]->connection->nic();
    if (i + 1 == cooled.size() || &cooled[i + 1]->connection->nic() != &nic) {
      nic.arm_all(tripwires);
      tripwires.clear();
    }
  }
  if (!cooled.empty()) cooled_.clear();
  for (Peer* peer : cooled) {
    cooled_.push_back(peer->index);
    if (peer->connection->readable() || peer->connection->room_has_come() ||
        peer->connection->peer_gone()) {
      peer->connection->post_event();
    }
  }
  return progress_sends();
}

// After a sleep, check the peers that were hot: a child of this process may have lost a wake-up.
void MessageEndpointCore::look_at_cooled() {
  if (arrivals_->pending()) return;
  for (const PeerIndex index : cooled_) {
    Peer* peer = find(index);
    if (peer == nullptr || peer->hot || peer->departed || peer->held != Peer::Held::kNo) continue;
    if (peer->connection->readable() || peer->connection->peer_gone())
      peer->connection->post_event();
  }
}

// Offers are answered in a line that the same tripwires cover, so one queue wakes us for all.
Status MessageEndpointCore::sleep(std::uint64_t deadline_ns) {
  if (cool()) return {};
  auto slept = arrivals_->wait_only(deadline_ns);
  look_at_cooled();
  return slept;
}

// --- events --------------------------------------------------------------------------------------

Status MessageEndpointCore::bind_peer(Peer& peer) {
  Connection& c = *peer.connection;
  // Younger than the one that posts to arrivals_, so it fires second: arrivals_ has the peer then.
  auto tripwire = c.add_event_tripwire(user_);
  if (!tripwire) return tripwire.error();
  c.also_notify(user_);
  c.nic().arm(*tripwire);
  // A peer writing just now may have passed the chain's end before this tripwire was there, and
  // post to arrivals_ alone, later than the application checks. What it wrote is visible already.
  if (c.readable() || c.peer_gone()) c.post_event();
  user_.post();
  return {};
}

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
Status MessageEndpoint::await(PeerIndex peer, std::int64_t timeout_ms) {
  return core_->await(peer, deadline_after_ms(timeout_ms));
}
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
  core_->progress_sends();
  std::size_t n = 0;
  for (auto& sent = core_->sent_; n < completions.size() && !sent.empty(); sent.pop_front())
    completions[n++] = sent.front();
  return n;
}
Result<std::span<std::byte>> MessageEndpoint::reserve(PeerIndex to, std::size_t bytes) {
  return core_->reserve(to, bytes);
}
void MessageEndpoint::commit(PeerIndex to, std::size_t bytes) {
  if (auto* peer = core_->find(to)) peer->connection->commit(bytes, engine::RecordType::kMessage);
}
std::size_t MessageEndpoint::max_eager(PeerIndex to) const {
  const auto* peer = core_->find(to);
  return peer == nullptr ? 0 : peer->connection->max_payload();
}
Status MessageEndpoint::try_send(PeerIndex to, std::span<const std::byte> header,
                                 std::span<const std::byte> message) {
  return core_->try_send(to, header, message);
}
bool MessageEndpoint::spin() {
  if (std::exchange(core_->armed_fd_, false)) {
    core_->waiter_.slept();
    core_->look_at_cooled();
  }
  return core_->waiter_.spin([&] { return core_->something_new(); }, core_->awaited());
}
Status MessageEndpoint::sleep(std::int64_t timeout_ms) {
  const std::uint64_t deadline_ns = deadline_after_ms(timeout_ms);
  if (!core_->context_->usable()) return engine::unusable_error();
  if (core_->something_told() || !core_->waiter_.may_sleep()) return {};
  auto slept = core_->sleep(deadline_ns);
  core_->waiter_.slept();
  if (slept.ok() && deadline_ns != kNoDeadline && monotonic_ns() >= deadline_ns &&
      !core_->arrivals_->pending()) {
    return Error{ETIMEDOUT, "no message in time"};
  }
  return slept;
}
Result<int> MessageEndpoint::fd() { return core_->arrivals_->fd(); }
bool MessageEndpoint::arm_fd() {
  if (core_->something_told() || core_->cool()) return false;
  return core_->armed_fd_ = core_->arrivals_->arm_fd();
}
void MessageEndpoint::ring_fd() { core_->arrivals_->ring(); }
void MessageEndpoint::wake() { core_->arrivals_->wake_all(); }
Result<MessageInfo> MessageEndpoint::try_recv(std::span<std::byte> buffer) {
  return core_->try_recv(buffer);
}
Result<MessageInfo> MessageEndpoint::recv(std::span<std::byte> buffer, std::int64_t timeout_ms) {
  MessageEndpointCore& core = *core_;
  const std::uint64_t deadline_ns = deadline_after_ms(timeout_ms);
  for (;;) {
    // Hot rings first, for a while: a peer in conversation answers within microseconds.
    for (int i = 0; i < engine::kHotLooks; ++i) {
      if (core.hot_pending()) break;
    }
    if (core.find_front() && !core.front_.offered && !core.front_.assembled) [[likely]]
      return core.take(buffer);
    auto m = core.try_recv(buffer);
    if (m.ok() || m.error().err != EAGAIN) return m;
    if (auto s = core.tell_departure(); !s) return s.error();
    Status s;
    const auto asleep = [&] {
      s = core.sleep(deadline_ns);
      return s.ok();
    };
    if (std::exchange(core.armed_fd_, false)) core.waiter_.slept();
    if (core.waiter_.wait([&] { return core.something_new(); }, core.awaited(), deadline_ns,
                          asleep) == WaitResult::kTimedOut) {
      return Error{ETIMEDOUT, "no message in time"};
    }
    if (!s) return s.error();
  }
}
Result<IncomingMessage> MessageEndpoint::peek() { return core_->peek(); }
Result<IncomingMessage> MessageEndpoint::peek_fetched() { return core_->peek(engine::Fetch::kNo); }
Result<MessageInfo> MessageEndpoint::take(std::span<std::byte> buffer) {
  return core_->take(buffer);
}
void MessageEndpoint::drop() {
  const engine::MessageFront& front = core_->front_;
  if (front.peer != nullptr && !front.assembled && !front.offered) [[likely]] {
    std::exchange(core_->front_.peer, nullptr)->connection->consume(front.record);
    return;
  }
  (void)core_->take({});
}
Status MessageEndpoint::register_with(EventQueue& queue, std::uint64_t tag) {
  engine::EventBinding& user = core_->user_;
  if (user) return Error{EBUSY, "the endpoint is registered with an event queue already"};
  Status bound;
  {
    std::lock_guard lock(core_->mutex_);
    bound = user.bind(queue.core(), EventKind::kMessage, tag);
  }
  if (!bound) return bound;
  for (auto& peer : core_->peers_) {
    if (bound && peer && peer->connection) bound = core_->bind_peer(*peer);
  }
  user.post();
  return bound;
}

// --- messages that both sides work on, and those that are held back ------------------------------

using Held = engine::MessagePeer::Held;

bool MessageEndpoint::shares_messages(PeerIndex to) const {
  const auto* peer = core_->find(to);
  return peer != nullptr && peer->connection->mapped() && !peer->connection->peer_sleeps();
}

std::uint64_t MessageEndpoint::sent_mark(PeerIndex to) const {
  const auto* peer = core_->find(to);
  return peer == nullptr ? 0 : peer->connection->produced();
}

bool MessageEndpoint::has_left(PeerIndex to, std::uint64_t mark) const {
  const auto* peer = core_->find(to);
  return peer == nullptr || peer->connection->known_consumed() >= mark;
}

std::atomic<std::uint64_t>* MessageEndpoint::shared_word(std::size_t offset) {
  const engine::MessageFront& front = core_->front_;
  const bool there = front.peer != nullptr && !front.offered && !front.assembled &&
                     front.peer->connection->mapped() && offset <= front.size &&
                     front.size - offset >= sizeof(std::uint64_t);
  // a record's payload is aligned
  if (!there || offset % sizeof(std::uint64_t) != 0) return nullptr;
  return reinterpret_cast<std::atomic<std::uint64_t>*>(
      const_cast<std::byte*>(front.record.payload) + offset);
}

void MessageEndpoint::hold() {
  if (auto* peer = std::exchange(core_->front_.peer, nullptr)) peer->held = Held::kYes;
}

void MessageEndpoint::resume(PeerIndex index) {
  auto* peer = core_->find(index);
  if (peer == nullptr) return;
  peer->held = peer->assembled ? Held::kShowAgain : Held::kNo;
  peer->connection->post_event();  // it may have become cold meanwhile
}

void MessageEndpoint::nudge(PeerIndex to) {
  const auto* peer = core_->find(to);
  if (peer != nullptr && peer->connection->mapped()) peer->connection->nudge();
}

bool MessageEndpoint::has_gone(PeerIndex index) const {
  const auto* peer = core_->find(index);
  return peer == nullptr || peer->connection->peer_gone();
}

}  // namespace clan

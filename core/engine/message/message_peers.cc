// Message endpoints: peers come, are connected to, and go.

#include "clan/detail/words.h"
#include "engine/message/message_endpoint.h"

namespace clan::engine {
Result<PeerIndex> MessageEndpointCore::add_peer(std::shared_ptr<Connection> connection,
                                                bool chosen) {
  auto peer = std::make_unique<Peer>();
  peer->chosen = chosen;
  peer->index = static_cast<PeerIndex>(peers_.size());
  if (auto s = join(*peer, std::move(connection)); !s) return s.error();
  peers_.push_back(std::move(peer));
  return peers_.back()->index;
}

// The connection is the peer's from now on, and its events come here.
Status MessageEndpointCore::join(Peer& peer, std::shared_ptr<Connection> connection) {
  if (auto s = connection->bind(arrivals_, EventKind::kMessage, peer.index); !s) return s;
  peer.connection = std::move(connection);
  Status bound = user_ ? bind_peer(peer) : Status();
  if (!bound) peer.connection.reset();  // no event would announce what it sends
  return bound;
}

void MessageEndpointCore::on_answer() {
  std::lock_guard lock(mutex_);
  announce_arrival();
}

// Under the mutex.
void MessageEndpointCore::announce_arrival() {
  words::store_release(any_accepted_, true);  // PAIR endpoint.accepted: to adopt()
  arrivals_->post(adopt_event_);
  user_.post();
}

void MessageEndpointCore::look_at_attempts() {
  for (std::size_t i = 0; i < connecting_.size();) {
    Peer& peer = *connecting_[i];
    look_at_attempt(peer);
    if (peer.attempt) {
      ++i;
    } else {
      connecting_.erase(connecting_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
}

void MessageEndpointCore::look_at_attempt(Peer& peer) {
  auto connection = peer.attempt->result();
  if (!connection && connection.error().err == EAGAIN) return;
  peer.attempt.reset();
  Status joined = connection.ok() ? Status() : Status(connection.error());
  try {
    if (joined) joined = join(peer, *connection);
  } catch (const std::bad_alloc&) {
    peer.connection.reset();
    joined = Error{ENOMEM, "no memory for a connection"};
  }
  if (joined) return;
  peer.failure = joined.error().err;
  peer.departed = true;
  departed_.push_back({peer.index, peer.failure, peer.failure});
  ++untold_;
}

// Why find() has none of this number.
Error MessageEndpointCore::no_peer(PeerIndex index) {
  if (!context_->usable()) return unusable_error();
  Peer* peer = find_any(index);
  if (peer == nullptr) return {EINVAL, "no such peer"};
  if (peer->attempt) look_at_attempts();
  if (peer->failure != 0) return {peer->failure, "the peer could not be connected to"};
  return {EAGAIN, "the peer has not accepted yet"};
}

Status MessageEndpointCore::await(PeerIndex index, std::uint64_t deadline_ns) {
  if (find(index) != nullptr) return {};
  Peer* peer = find_any(index);
  if (peer != nullptr && peer->attempt && peer->attempt->wait(deadline_ns)) look_at_attempts();
  if (find(index) != nullptr) return {};
  const Error error = no_peer(index);
  return find(index) != nullptr ? Status() : Status(error);
}

void MessageEndpointCore::on_oob(const std::shared_ptr<nic::Link>& link,
                                 const OobMessage& message) {
  if (message.type != kOobConnect) return;
  std::lock_guard lock(mutex_);
  if (accepted_.size() >= context_->options().backlog)
    return Connection::refuse(*link, message, ECONNREFUSED);
  auto connection = Connection::accept(context_, link, message, ConnectionKind::kMessages);
  if (!connection) return Connection::refuse(*link, message, connection.error().err);
  accepted_.push_back(std::move(*connection));
  announce_arrival();
}

void MessageEndpointCore::adopt() {
  // PAIR endpoint.accepted: sees the connections
  if (!words::load_acquire(any_accepted_)) return;
  std::vector<std::shared_ptr<Connection>> fresh;
  {
    std::lock_guard lock(mutex_);
    fresh.swap(accepted_);
    any_accepted_.store(false, std::memory_order_relaxed);
  }
  if (!connecting_.empty()) look_at_attempts();
  for (auto& connection : fresh) (void)add_peer(std::move(connection), false);
}

void MessageEndpointCore::make_hot(Peer& peer) {
  if (peer.hot) return;
  if (hot_.size() == kMaxHot) {
    next_hot_ %= hot_.size();
    Peer& coldest = *hot_[next_hot_];
    make_cold(coldest);
  }
  peer.connection->pause_events();
  peer.hot = true;
  hot_.push_back(&peer);
}

void MessageEndpointCore::make_cold(Peer& peer) {
  if (!peer.hot) return;
  peer.hot = false;
  std::erase(hot_, &peer);
  peer.connection->nic().arm(peer.connection->event_tripwire());
  // What came between our last look and the arming.
  if (peer.connection->readable() || peer.connection->peer_gone()) peer.connection->post_event();
}

void MessageEndpointCore::disconnect(PeerIndex index) {
  Peer* peer = find_any(index);
  if (peer == nullptr) return;
  if (front_.peer == peer) front_ = {};
  end_sends(*peer, ECANCELED);
  std::erase(hot_, peer);
  std::erase(connecting_, peer);
  if (peer->attempt) peer->attempt->let_go();
  if (peer->connection) peer->connection->close();
  peers_[index].reset();
  for (Departure& d : departed_) {
    if (d.peer == index && std::exchange(d.err, 0) != 0) --untold_;
  }
}

// The peer is gone and all it sent is received. `told`: the caller answers with its error.
void MessageEndpointCore::depart(Peer& peer, bool told) {
  if (peer.departed) return;
  peer.departed = true;
  end_sends(peer, ECONNRESET);
  std::erase(hot_, &peer);
  peer.hot = false;
  const int reason = peer.connection->reset_reason();
  // A server need not know that a client has finished; a client must know that its server has.
  const int err = told ? 0 : reason != 0 ? reason : peer.chosen ? EPIPE : 0;
  departed_.push_back({peer.index, err, reason});
  if (err != 0) ++untold_;
}

// The oldest departure that recv() has yet to speak of, as its error.
Status MessageEndpointCore::tell_departure() {
  if (untold_ == 0) return {};
  for (Departure& d : departed_) {
    const int err = std::exchange(d.err, 0);
    if (err == 0) continue;
    --untold_;
    if (err == EPIPE)
      return Error{err, "a peer we had connected to has closed (take_departed() names it)"};
    if (err == ECONNRESET) return Error{err, "a peer died (take_departed() names it)"};
    if (err != EPROTO)
      return Error{err, "a peer could not be connected to (take_departed() names it)"};
    return Error{err, "a peer was reset (take_departed() names it)"};
  }
  return {};
}

}  // namespace clan::engine

namespace clan {

Result<PeerIndex> MessageEndpoint::connect(const Address& peer, std::int64_t timeout_ms) {
  const std::uint64_t deadline_ns = deadline_after_ms(timeout_ms);
  auto link = core_->context_->link_to_node(peer.node, peer.uid, deadline_ns);
  if (!link) return link.error();
  auto connection =
      engine::Connection::connect(core_->context_, std::move(*link), peer.endpoint,
                                  engine::ConnectionKind::kMessages, core_->address(), deadline_ns);
  if (!connection) return connection.error();
  return core_->add_peer(std::move(*connection), true);
}

Result<PeerIndex> MessageEndpoint::connect(const std::string& service, std::int64_t timeout_ms,
                                           std::int64_t uid) {
  auto connection = engine::Connection::connect_service(
      core_->context_, service, core_->context_->owner(uid), engine::ConnectionKind::kMessages,
      core_->address(), deadline_after_ms(timeout_ms));
  if (!connection) return connection.error();
  return core_->add_peer(std::move(*connection), true);
}

Result<PeerIndex> MessageEndpoint::begin_connect(
    const std::string& service, std::span<const std::span<const std::byte>> greetings,
    std::int64_t timeout_ms, std::int64_t uid) {
  auto attempt = engine::ConnectAttempt::begin(
      core_->context_, service, core_->context_->owner(uid), engine::ConnectionKind::kMessages,
      core_->address(), greetings, deadline_after_ms(timeout_ms), core_->weak_from_this());
  if (!attempt) return attempt.error();
  auto& peers = core_->peers_;
  auto peer = std::make_unique<engine::MessagePeer>();
  peer->attempt = std::move(*attempt);
  peer->chosen = true;
  peer->index = static_cast<PeerIndex>(peers.size());
  core_->connecting_.reserve(core_->connecting_.size() + 1);  // before anything is changed
  peers.push_back(std::move(peer));
  core_->connecting_.push_back(peers.back().get());
  core_->look_at_attempts();
  return peers.back()->index;
}

Result<Address> MessageEndpoint::peer_address(PeerIndex index) const {
  const auto* peer = core_->find(index);
  if (peer == nullptr)
    return Error{core_->find_any(index) == nullptr ? EINVAL : ENOTCONN,
                 "not connected to this peer"};
  return peer->connection->remote_address();
}

bool MessageEndpoint::is_far(PeerIndex index) const {
  const auto* peer = core_->find(index);
  return peer != nullptr && !peer->connection->link().capabilities().mapped;
}

bool MessageEndpoint::take_departed(PeerIndex* peer, int* reason) {
  if (core_->departed_.empty()) return false;
  const engine::MessageDeparture& oldest = core_->departed_.front();
  *peer = oldest.peer;
  if (reason != nullptr) *reason = oldest.reason;
  if (oldest.err != 0) --core_->untold_;
  core_->departed_.pop_front();
  return true;
}

}  // namespace clan

#include "engine/message_endpoint.h"

#include <unistd.h>

#include <algorithm>

namespace clan::engine {
namespace {

constexpr std::uint64_t kAdoptTag = ~std::uint64_t{0};
constexpr std::uint64_t kNoCookie = ~std::uint64_t{0};  ///< a send() that waits for its own offer
constexpr std::uint64_t kLeastCopyNs = 200'000;  ///< of a large message and the answer to it; and 1 ns for each byte
constexpr std::size_t kMostAwaitedBytes = 20'000'000;
constexpr int kHotLooks = 200;                          ///< before recv() looks at anything else
constexpr unsigned kColdEvery = 32;                     ///< looks at hot rings between looks at cold ones

}  // namespace

MessageEndpointCore::~MessageEndpointCore() {
  if (!service_.empty()) context_->remove_service(service_);
  if (endpoint_ != 0) context_->remove_endpoint(endpoint_);
  for (auto& peer : peers_) {
    if (!peer) continue;
    for (std::uint32_t slot = 0; slot < peer->offers.size(); ++slot) {
      if (peer->offers[slot].open) take_back(*peer, slot);
    }
    if (peer->attempt) peer->attempt->cancel();
    if (peer->connection) peer->connection->close();
  }
  if (user_queue_ && context_->usable()) user_queue_->remove(user_event_);
}

Status MessageEndpointCore::start(const std::string& service) {
  hot_.reserve(kMaxHot);  // an event that has been taken must not be lost for want of memory
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

Address MessageEndpointCore::address() const {
  return context_->address_of(endpoint_);
}

// --- peers -----------------------------------------------------------------------------------------

Result<PeerIndex> MessageEndpointCore::connect_link(std::shared_ptr<nic::Link> link,
                                                    std::uint32_t endpoint,
                                                    std::uint64_t deadline_ns) {
  auto connection = Connection::connect(context_, std::move(link), endpoint, ConnectionKind::kMessages,
                                        address(), deadline_ns);
  if (!connection) return connection.error();
  return add_peer(std::move(*connection), true);
}

Result<PeerIndex> MessageEndpointCore::connect(const Address& peer, std::uint64_t deadline_ns) {
  auto link = context_->link_to_node(peer.node, peer.uid, deadline_ns);
  if (!link) return link.error();
  auto index = connect_link(std::move(*link), peer.endpoint, deadline_ns);
  if (index.ok()) peers_[*index]->connection->set_remote_address(peer);
  return index;
}

Result<PeerIndex> MessageEndpointCore::connect(const std::string& service, uid_t uid,
                                               std::uint64_t deadline_ns) {
  Address peer;
  auto connection = Connection::connect_service(context_, service, uid, ConnectionKind::kMessages,
                                                address(), deadline_ns, &peer);
  if (!connection) return connection.error();
  (*connection)->set_remote_address(peer);
  return add_peer(std::move(*connection), true);
}

Result<PeerIndex> MessageEndpointCore::add_peer(std::shared_ptr<Connection> connection, bool chosen) {
  auto peer = std::make_unique<Peer>();
  peer->chosen = chosen;
  peer->index = static_cast<PeerIndex>(peers_.size());
  if (auto s = join(*peer, std::move(connection)); !s) return s.error();
  peers_.push_back(std::move(peer));
  return peers_.back()->index;
}

// The connection is the peer's from now on, and its events come here.
Status MessageEndpointCore::join(Peer& peer, std::shared_ptr<Connection> connection) {
  auto event = arrivals_->add(EventKind::kMessage, peer.index);
  if (!event) return event.error();
  if (auto s = connection->bind_shared(arrivals_, *event); !s) {
    arrivals_->remove(*event);
    return s;
  }
  peer.event = *event;
  peer.connection = std::move(connection);
  if (user_queue_) bind_peer(peer);
  return {};
}

Result<PeerIndex> MessageEndpointCore::begin_connect(const std::string& service, uid_t uid,
                                                     std::span<const std::span<const std::byte>> greetings,
                                                     std::uint64_t deadline_ns) {
  auto attempt = ConnectAttempt::begin(context_, service, uid, ConnectionKind::kMessages, address(),
                                       greetings, deadline_ns, weak_from_this());
  if (!attempt) return attempt.error();
  auto peer = std::make_unique<Peer>();
  peer->attempt = std::move(*attempt);
  peer->chosen = true;
  peer->index = static_cast<PeerIndex>(peers_.size());
  connecting_.reserve(connecting_.size() + 1);  // before anything is changed
  peers_.push_back(std::move(peer));
  connecting_.push_back(peers_.back().get());
  look_at_attempts();
  return peers_.back()->index;
}

void MessageEndpointCore::on_answer() {
  {
    std::lock_guard lock(mutex_);
    any_accepted_.store(true, std::memory_order_release);  // PAIR endpoint.accepted: to adopt()
  }
  arrivals_->post(adopt_event_);
  std::lock_guard lock(mutex_);
  if (user_queue_) user_queue_->post(user_event_);
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

Result<Address> MessageEndpointCore::peer_address(PeerIndex index) const {
  Peer* peer = find(index);
  if (peer == nullptr)
    return Error{find_any(index) == nullptr ? EINVAL : ENOTCONN, "not connected to this peer"};
  return peer->connection->remote_address();
}

void MessageEndpointCore::on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) {
  if (message.type != kOobConnect) return;
  {
    std::lock_guard lock(mutex_);
    if (accepted_.size() >= context_->options().backlog) {
      Connection::refuse(*link, message, ECONNREFUSED);
      return;
    }
    auto connection = Connection::accept(context_, link, message, ConnectionKind::kMessages);
    if (!connection) {
      Connection::refuse(*link, message, connection.error().err);
      return;
    }
    accepted_.push_back(std::move(*connection));
    any_accepted_.store(true, std::memory_order_release);  // PAIR endpoint.accepted: to adopt()
  }
  arrivals_->post(adopt_event_);
  std::lock_guard lock(mutex_);
  if (user_queue_) user_queue_->post(user_event_);
}

void MessageEndpointCore::on_link_down(const std::shared_ptr<nic::Link>&) {
  // Every connection hears of it by itself and posts its event.
}

void MessageEndpointCore::adopt() {
  // PAIR endpoint.accepted: sees the connections
  if (!any_accepted_.load(std::memory_order_acquire)) return;
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
  peer.connection->nic().disarm(peer.connection->event_tripwire());
  peer.hot = true;
  hot_.push_back(&peer);
}

void MessageEndpointCore::make_cold(Peer& peer) {
  if (!peer.hot) return;
  peer.hot = false;
  std::erase(hot_, &peer);
  peer.connection->nic().arm(peer.connection->event_tripwire());
  // What came between our last look and the arming.
  if (peer.connection->readable() || peer.connection->peer_gone()) arrivals_->post(peer.event);
}

void MessageEndpointCore::disconnect(PeerIndex index) {
  Peer* peer = find_any(index);
  if (peer == nullptr) return;
  if (front_.peer == peer) front_ = {};
  for (std::uint32_t slot = 0; slot < peer->offers.size(); ++slot) {
    if (peer->offers[slot].open) take_back(*peer, slot);
  }
  for (const Offer& o : peer->fragmenting) report_sent(*peer, o.user_cookie, ECANCELED);
  peer->fragmenting.clear();
  std::erase(sending_, peer);
  std::erase(hot_, peer);
  std::erase(connecting_, peer);
  if (peer->attempt) peer->attempt->let_go();
  if (peer->connection) {
    peer->connection->close();
    arrivals_->remove(peer->event);
  }
  peers_[index].reset();
  for (Departure& d : departed_) {
    if (d.peer == index && std::exchange(d.err, 0) != 0) --untold_;
  }
}

// The peer is gone: whatever we were sending it has failed. What it sent can still be received.
void MessageEndpointCore::fail_sends(Peer& peer) {
  for (std::uint32_t slot = 0; slot < peer.offers.size(); ++slot) {
    if (peer.offers[slot].open) finish_offer(peer, slot, ECONNRESET);
  }
  for (const Offer& o : peer.fragmenting) report_sent(peer, o.user_cookie, ECONNRESET);
  peer.fragmenting.clear();
  std::erase(sending_, &peer);
}

// The peer is gone and everything it sent has been received. `told`: the caller answers with its error.
void MessageEndpointCore::depart(Peer& peer, bool told) {
  if (peer.departed) return;
  peer.departed = true;
  fail_sends(peer);
  std::erase(hot_, &peer);
  peer.hot = false;
  const int reason = peer.connection->reset_reason();
  // That a client has finished is no news to a server; that a server has gone is news to its client.
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
    if (err == EPIPE) return Error{err, "a peer we had connected to has closed (take_departed() names it)"};
    if (err == ECONNRESET) return Error{err, "a peer died (take_departed() names it)"};
    if (err != EPROTO) return Error{err, "a peer could not be connected to (take_departed() names it)"};
    return Error{err, "a peer was reset (take_departed() names it)"};
  }
  return {};
}

bool MessageEndpointCore::take_departed(PeerIndex* peer, int* reason) {
  if (departed_.empty()) return false;
  *peer = departed_.front().peer;
  if (reason != nullptr) *reason = departed_.front().reason;
  if (departed_.front().err != 0) --untold_;
  departed_.pop_front();
  return true;
}

// --- sending ---------------------------------------------------------------------------------------

Status MessageEndpointCore::send_error(const Peer& peer) const {
  if (!context_->usable()) return unusable_error();
  int reason = peer.connection->reset_reason();
  return Error{reason != 0 ? reason : EPIPE, "the peer is gone"};
}

std::size_t MessageEndpointCore::max_eager(PeerIndex to) const {
  Peer* peer = find(to);
  return peer == nullptr ? 0 : peer->connection->max_payload();
}

Result<std::span<std::byte>> MessageEndpointCore::reserve(PeerIndex to, std::size_t bytes) {
  Peer* peer = find(to);
  if (peer == nullptr) [[unlikely]]
    return no_peer(to);
  Connection& c = *peer->connection;
  if (bytes > c.max_payload()) return Error{EMSGSIZE, "more than max_eager() in one piece"};
  if (c.peer_gone() || !context_->usable()) return send_error(*peer).error();
  if (!peer->fragmenting.empty()) {
    progress_fragments(*peer);  // order: earlier messages first
    if (!peer->fragmenting.empty()) return Error{EAGAIN, "no room to send"};
  }
  std::byte* room = c.reserve(bytes);
  if (room == nullptr) return Error{EAGAIN, "no room to send"};
  return std::span<std::byte>(room, bytes);
}

void MessageEndpointCore::commit(PeerIndex to, std::size_t bytes) {
  if (Peer* peer = find(to)) peer->connection->commit(bytes, RecordType::kMessage);
}

Status MessageEndpointCore::try_send(PeerIndex to, std::span<const std::byte> header,
                                     std::span<const std::byte> message) {
  Peer* peer = find(to);
  if (peer == nullptr) [[unlikely]]
    return no_peer(to);
  Connection& c = *peer->connection;
  const std::size_t total = header.size() + message.size();
  if (c.peer_gone() || !peer->fragmenting.empty() || !c.mapped() || total > c.max_payload()) [[unlikely]] {
    auto room = reserve(to, total);
    if (!room) return room.error();
    if (!header.empty()) std::memcpy(room->data(), header.data(), header.size());
    if (!message.empty()) std::memcpy(room->data() + header.size(), message.data(), message.size());
    c.commit(total, RecordType::kMessage);
    return {};
  }
  if (!context_->usable()) [[unlikely]]
    return unusable_error();
  if (!c.append(header, message, RecordType::kMessage)) return Error{EAGAIN, "no room to send"};
  return {};
}

Result<bool> MessageEndpointCore::post(PeerIndex to, std::span<const std::byte> header,
                                       std::span<const std::byte> message, std::uint64_t cookie) {
  Peer* peer = find(to);
  if (peer == nullptr) return no_peer(to);
  if (header.size() > kMaxMessageHeader) return Error{EINVAL, "a header longer than kMaxMessageHeader"};
  Connection& c = *peer->connection;
  const std::size_t eager = std::min<std::size_t>(options_.eager_bytes, c.max_payload());
  const std::size_t total = header.size() + message.size();
  if (total <= eager || message.empty()) {
    if (auto sent = try_send(to, header, message); !sent) return sent.error();
    return true;
  }
  if (total > options_.max_message) return Error{EMSGSIZE, "longer than max_message"};
  if (c.peer_gone() || !context_->usable()) return send_error(*peer).error();
  if (peer->open_offers == ~std::uint64_t{0}) progress_offers(*peer);
  // With 64 offers open the next message goes in fragments: it must not be refused because the peer has not
  // decided yet what to do with the others.
  const bool can_offer = c.peer_can_copy() && c.mapped() && peer->open_offers != ~std::uint64_t{0};
  if (can_offer && peer->fragmenting.empty()) {
    return offer(*peer, header, message, cookie);
  }
  Offer pieces{false, {}, cookie, message, {}, header.size()};
  std::copy(header.begin(), header.end(), pieces.header.begin());
  peer->fragmenting.push_back(pieces);
  note_sending(*peer);
  blocking_open_ = blocking_open_ || cookie == kNoCookie;
  progress_fragments(*peer);
  return false;
}

Result<bool> MessageEndpointCore::offer(Peer& peer, std::span<const std::byte> header,
                                        std::span<const std::byte> message, std::uint64_t cookie) {
  if (peer.offers.empty()) peer.offers.resize(64);
  Connection& c = *peer.connection;
  const auto slot = static_cast<std::uint32_t>(__builtin_ctzll(~peer.open_offers));
  std::byte* room = c.reserve(sizeof(OfferRecord) + header.size());
  if (room == nullptr) return Error{EAGAIN, "no room to send"};
  auto exported = c.nic().export_aperture(
      {const_cast<std::byte*>(message.data()), message.size(), Rights::kRead, nullptr});
  if (!exported) return exported.error();
  OfferRecord record{*exported, slot, 0};
  std::memcpy(room, &record, sizeof record);
  if (!header.empty()) std::memcpy(room + sizeof record, header.data(), header.size());
  c.commit(sizeof record + header.size(), RecordType::kOffer);
  peer.offers[slot] = {true, *exported, cookie, message, {}, 0};
  copied_until_ns_ = monotonic_ns() + kLeastCopyNs + std::min(message.size(), kMostAwaitedBytes);
  peer.open_offers |= std::uint64_t{1} << slot;
  note_sending(peer);
  blocking_open_ = blocking_open_ || cookie == kNoCookie;
  return false;
}

void MessageEndpointCore::note_sending(Peer& peer) {
  if (std::find(sending_.begin(), sending_.end(), &peer) == sending_.end()) sending_.push_back(&peer);
}

void MessageEndpointCore::report_sent(const Peer& peer, std::uint64_t cookie, int status) {
  if (cookie != kNoCookie) {
    sent_.push_back({cookie, peer.index, status});
  } else {
    blocking_open_ = false;
    blocking_status_ = status;
  }
}

void MessageEndpointCore::finish_offer(Peer& peer, std::uint32_t slot, int status) {
  Offer& o = peer.offers[slot];
  if (context_->usable()) peer.connection->nic().retire(o.cookie.aperture);
  o.open = false;
  peer.open_offers &= ~(std::uint64_t{1} << slot);
  report_sent(peer, o.user_cookie, status);
}

// The caller is about to reuse the message's memory: no copy may be under way when this returns.
void MessageEndpointCore::take_back(Peer& peer, std::uint32_t slot) {
  Offer& o = peer.offers[slot];
  if (context_->usable()) (void)context_->revoke(peer.connection->nic(), o.cookie.aperture);
  o.open = false;
  peer.open_offers &= ~(std::uint64_t{1} << slot);
  report_sent(peer, o.user_cookie, ECANCELED);
}

// Answers to our offers. True when something moved.
bool MessageEndpointCore::progress_offers(Peer& peer) {
  bool moved = false;
  for (int word = 0; word < 2; ++word) {
    auto& answers = peer.connection->own_offer_word(word);
    if (answers.load(std::memory_order_relaxed) == 0) continue;  // relaxed: the exchange acquires
    // PAIR offer.answer: the peer's copy of the message is complete
    std::uint64_t bits = answers.exchange(0, std::memory_order_seq_cst) & peer.open_offers;
    while (bits != 0) {
      const auto slot = static_cast<std::uint32_t>(__builtin_ctzll(bits));
      bits &= bits - 1;
      moved = true;
      // Word 1: it could not be copied, though the peer can copy from us: the memory is not readable.
      finish_offer(peer, slot, word == 0 ? 0 : EFAULT);
    }
  }
  return moved;
}

bool MessageEndpointCore::progress_fragments(Peer& peer) {
  bool moved = false;
  Connection& c = *peer.connection;
  const std::size_t most = std::min<std::size_t>(c.max_payload(), shm::kRingPiece);
  while (!peer.fragmenting.empty() && !c.peer_gone()) {
    Offer& o = peer.fragmenting.front();
    const std::size_t n = std::min(most, o.total() - peer.fragment_sent);
    std::byte* room = c.reserve(n);
    if (room == nullptr) break;
    // The first fragment has room for the whole header.
    const std::size_t head = peer.fragment_sent == 0 ? o.header_bytes : 0;
    if (head > 0) std::memcpy(room, o.header.data(), head);
    const std::size_t from = peer.fragment_sent + head - o.header_bytes;
    if (n > head) std::memcpy(room + head, o.message.data() + from, n - head);
    peer.fragment_sent += n;
    moved = true;
    const bool last = peer.fragment_sent == o.total();
    c.commit(n, last ? RecordType::kLastFragment : RecordType::kFragment);
    if (!last) continue;
    report_sent(peer, o.user_cookie, 0);
    peer.fragmenting.pop_front();
    peer.fragment_sent = 0;
  }
  return moved;
}

bool MessageEndpointCore::progress_sends() {
  bool moved = context_->help();
  for (std::size_t i = 0; i < sending_.size();) {
    Peer& peer = *sending_[i];
    if (peer.open_offers != 0) moved = progress_offers(peer) || moved;
    if (!peer.fragmenting.empty()) moved = progress_fragments(peer) || moved;
    const bool done = peer.open_offers == 0 && peer.fragmenting.empty();
    if (done) {
      sending_.erase(sending_.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (peer.connection->peer_gone()) {
      fail_sends(peer);  // takes it off the list
      moved = true;
    } else {
      ++i;
    }
  }
  return moved;
}

std::size_t MessageEndpointCore::poll_sent(std::span<SendCompletion> completions) {
  progress_sends();
  std::size_t n = 0;
  while (n < completions.size() && !sent_.empty()) {
    completions[n++] = sent_.front();
    sent_.pop_front();
  }
  return n;
}

Status MessageEndpointCore::send(PeerIndex to, std::span<const std::byte> message,
                                 std::uint64_t deadline_ns) {
  if (auto s = await(to, deadline_ns); !s) [[unlikely]] {
    return s.error().err == EAGAIN ? Error{ETIMEDOUT, "the peer has not accepted in time"} : s.error();
  }
  Peer* peer = find(to);
  Connection& c = *peer->connection;
  for (;;) {
    auto posted = post(to, {}, message, kNoCookie);
    if (posted.ok() && *posted) return {};
    if (posted.ok()) break;
    if (posted.error().err != EAGAIN) return posted.error();
    const std::size_t wanted = std::min<std::size_t>(message.size(), c.max_payload());
    auto room = [&] {
      progress_sends();
      return c.peer_gone() || (peer->fragmenting.empty() && c.writable(wanted));
    };
    if (auto s = c.wait_control(room, deadline_ns); !s) return s;
  }
  // A large message: wait until the peer has it. There is only one that nobody else waits for.
  auto s = c.wait_control(
      [&] {
        progress_sends();
        return !blocking_open_ || c.peer_gone();
      },
      deadline_ns);
  if (blocking_open_ && c.peer_gone()) fail_sends(*peer);
  if (!blocking_open_) {
    if (blocking_status_ == ECONNRESET) return send_error(*peer);
    if (blocking_status_ != 0) return Error{blocking_status_, "the peer could not read the message"};
    return {};
  }
  for (std::uint32_t slot = 0; slot < peer->offers.size(); ++slot) {
    if (peer->offers[slot].open && peer->offers[slot].user_cookie == kNoCookie) take_back(*peer, slot);
  }
  // Fragments that have gone cannot be called back: the connection is of no further use.
  if (blocking_open_) disconnect(to);
  return s;
}

// --- receiving -------------------------------------------------------------------------------------

// Is there a message of this peer? Fills front_.
[[gnu::always_inline]] inline bool MessageEndpointCore::look_at(Peer& peer) {
  if (peer.held != Peer::Held::kNo) [[unlikely]]
    return show_held(peer);
  shm::RingRecord& record = front_.record;  // in place: a copy would stall on store forwarding
  const int rc = peer.connection->peek(&record);
  if (rc > 0 && record.head.type() == static_cast<std::uint8_t>(RecordType::kMessage)) [[likely]] {
    front_.peer = &peer;
    front_.size = record.head.length();
    front_.assembled = front_.offered = false;
    return true;
  }
  return look_closely(peer, rc);
}

bool MessageEndpointCore::show_held(Peer& peer) {
  if (peer.held == Peer::Held::kYes) return false;
  // A message of fragments that was held: it is not in the ring any more.
  peer.held = Peer::Held::kNo;
  front_ = {};
  front_.peer = &peer;
  front_.assembled = true;
  front_.size = peer.assembly.size();
  return true;
}

// `rc`: what peek() has said of the record in front_.
bool MessageEndpointCore::look_closely(Peer& peer, int rc) {
  Connection& c = *peer.connection;
  for (;; rc = c.peek(&front_.record)) {
    const shm::RingRecord& record = front_.record;
    if (rc <= 0) {
      if (rc < 0 || (c.peer_gone() && !c.readable())) depart(peer);
      return false;
    }
    if (record.head.type() == static_cast<std::uint8_t>(RecordType::kMessage)) [[likely]] {
      front_.peer = &peer;
      front_.size = record.head.length();
      front_.assembled = front_.offered = false;
      return true;
    }
    Front f;
    f.peer = &peer;
    f.record = record;
    f.size = record.head.length();
    switch (static_cast<RecordType>(record.head.type())) {
      case RecordType::kOffer:
        if (f.size >= sizeof(OfferRecord) && f.size <= sizeof(OfferRecord) + kMaxMessageHeader) {
          std::memcpy(&f.offer, record.payload, sizeof f.offer);
          f.header = {record.payload + sizeof f.offer, f.size - sizeof f.offer};
          if (f.offer.slot < 64 && f.offer.cookie.length <= options_.max_message) {
            f.offered = true;
            f.size = f.offer.cookie.length;
            front_ = f;
            return true;
          }
        }
        break;
      case RecordType::kFragment:
      case RecordType::kLastFragment: {
        if (peer.assembly.size() + f.size > options_.max_message) break;
        if (peer.assembled) return false;
        peer.assembly.insert(peer.assembly.end(), record.payload, record.payload + f.size);
        const bool last = record.head.type() == static_cast<std::uint8_t>(RecordType::kLastFragment);
        c.consume(record);
        if (!last) continue;
        f.assembled = peer.assembled = true;
        f.size = peer.assembly.size();
        front_ = f;
        return true;
      }
      default:
        break;
    }
    c.reset_hostile("a record that is not a message's");
    depart(peer);
    return false;
  }
}

bool MessageEndpointCore::find_front() {
  if (front_.peer != nullptr) return true;
  for (std::size_t i = 0, n = hot_.size(); i < n && i < hot_.size(); ++i) {
    if (next_hot_ >= hot_.size()) next_hot_ = 0;
    Peer& peer = *hot_[next_hot_ + i < hot_.size() ? next_hot_ + i : next_hot_ + i - hot_.size()];
    if (!peer.connection->readable() && !peer.connection->peer_gone()) continue;
    if (look_at(peer)) {
      ++next_hot_;
      // Cold peers must not starve behind a busy one: now and then they are made hot all the same.
      if (++turns_ % kColdEvery != 0) return true;
      break;
    }
  }
  adopt();
  // Most looks find nothing, and a latency is half of one on average.
  if (arrivals_->pending()) take_arrivals();
  return front_.peer != nullptr;
}

void MessageEndpointCore::take_arrivals() {
  Event events[16];
  const std::size_t n = arrivals_->poll(events);
  for (std::size_t i = 0; i < n; ++i) {
    if (events[i].tag == kAdoptTag) {
      adopt();
      continue;
    }
    Peer* peer = find(static_cast<PeerIndex>(events[i].tag));
    if (peer == nullptr || peer->departed) continue;
    make_hot(*peer);
    // make_hot() disarmed it: look again, and at least once for its departure.
    if (front_.peer == nullptr) look_at(*peer);
  }
}

bool MessageEndpointCore::quiet() const {
  for (const Peer* peer : hot_) {
    if (peer->connection->readable() || peer->connection->peer_gone()) return false;
  }
  if (front_.peer != nullptr || !sending_.empty() || !sent_.empty() || !departed_.empty()) return false;
  // relaxed: a glance; adopt() acquires
  return !any_accepted_.load(std::memory_order_relaxed) && !arrivals_->pending() && context_->usable() &&
         !context_->wants_help();
}

Result<IncomingMessage> MessageEndpointCore::peek() {
  if (!context_->usable()) return unusable_error();
  if (!find_front()) {
    progress_sends();
    return Error{EAGAIN, "no message"};
  }
  IncomingMessage m;
  m.from = front_.peer->index;
  m.size = front_.size;
  if (front_.assembled) {
    m.bytes = front_.peer->assembly;
  } else if (!front_.offered) {
    m.bytes = {front_.record.payload, front_.size};
  } else {
    m.offered = true;
    m.header = front_.header;
  }
  return m;
}

// Copies from an offered message in the sender's memory. 0 or errno.
int MessageEndpointCore::copy_offer(Peer& peer, const RdmaCookie& cookie, std::uint64_t offset,
                                    std::span<std::byte> buffer) {
  auto handle = peer.connection->link().import(cookie, false);
  if (!handle) return handle.error().err;
  nic::Transfer t{RdmaOp::kRead, &*handle, offset, buffer.data(),
                  std::min<std::uint64_t>(buffer.size(), cookie.length - offset), 0};
  int err = 0;
  if (t.length > 0) {
    auto result = peer.connection->link().transfer(t);
    if (result.kind == nic::TransferResult::Kind::kPending) {
      peer.connection->link().cancel(0);
      err = EOPNOTSUPP;
    } else if (result.kind != nic::TransferResult::Kind::kDone) {
      err = result.err;
    }
  }
  peer.connection->link().release(*handle);
  return err;
}

Result<MessageInfo> MessageEndpointCore::take(std::span<std::byte> buffer) {
  if (front_.peer == nullptr) return Error{EINVAL, "take() without a message that peek() has shown"};
  if (!front_.assembled && !front_.offered) [[likely]] {
    Peer& from = *std::exchange(front_.peer, nullptr);
    const std::size_t length = std::min(front_.size, buffer.size());
    if (length > 0) std::memcpy(buffer.data(), front_.record.payload, length);
    from.connection->consume(front_.record);
    return MessageInfo{from.index, front_.size, front_.size > buffer.size()};
  }
  const Front f = std::exchange(front_, {});
  Peer& peer = *f.peer;
  MessageInfo info{peer.index, f.size, f.size > buffer.size()};
  const std::size_t n = std::min(f.size, buffer.size());
  if (f.assembled) {
    if (n > 0) std::memcpy(buffer.data(), peer.assembly.data(), n);
    std::vector<std::byte>().swap(peer.assembly);
    peer.assembled = false;
    return info;
  }
  const int err = copy_offer(peer, f.offer.cookie, 0, buffer);
  peer.connection->consume(f.record);
  if (err == 0) {
    peer.connection->answer_offer(0, f.offer.slot);
    return info;
  }
  if (err == ECONNRESET || peer.connection->peer_gone()) {
    depart(peer, true);
    return Error{ECONNRESET, "the sender of a large message died before it was copied"};
  }
  if (err == ESTALE) return Error{EAGAIN, "the sender took its message back"};
  peer.connection->answer_offer(1, f.offer.slot);
  return Error{EAGAIN, "the sender offered memory that cannot be read"};
}

void MessageEndpointCore::drop() {
  if (front_.peer != nullptr && !front_.assembled && !front_.offered) [[likely]] {
    std::exchange(front_.peer, nullptr)->connection->consume(front_.record);
    return;
  }
  (void)take({});
}

Result<SetAside> MessageEndpointCore::set_aside() {
  if (front_.peer == nullptr || !front_.offered) {
    return Error{EINVAL, "set_aside() without an offered message that peek() has shown"};
  }
  const Front f = std::exchange(front_, {});
  f.peer->connection->consume(f.record);
  return SetAside{f.peer->index, f.offer.slot, f.offer.cookie};
}

Status MessageEndpointCore::copy(const SetAside& message, std::uint64_t offset, std::span<std::byte> buffer) {
  if (!context_->usable()) return unusable_error();
  Peer* peer = find(message.from);
  if (peer == nullptr) return Error{ECONNRESET, "the sender of a message set aside is gone"};
  if (offset > message.size() || buffer.size() > message.size() - offset) {
    return Error{ERANGE, "beyond the end of a message set aside"};
  }
  if (buffer.empty()) return {};
  const int err = copy_offer(*peer, message.cookie, offset, buffer);
  if (err == 0) return {};
  if (err == ECONNRESET || peer->connection->peer_gone()) {
    return Error{ECONNRESET, "the sender of a message set aside is gone"};
  }
  if (err == ESTALE) return Error{ESTALE, "the sender took its message back"};
  return Error{EFAULT, "the sender offered memory that cannot be read"};
}

void MessageEndpointCore::finish(const SetAside& message, bool received) {
  Peer* peer = find(message.from);
  if (peer == nullptr || peer->connection->peer_gone() || !context_->usable()) return;
  peer->connection->answer_offer(received ? 0 : 1, message.slot);
}

// --- messages that both sides work on --------------------------------------------------------------

bool MessageEndpointCore::shares_messages(PeerIndex to) const {
  Peer* peer = find(to);
  return peer != nullptr && peer->connection->mapped() && !peer->connection->peer_sleeps();
}

std::uint64_t MessageEndpointCore::sent_mark(PeerIndex to) const {
  Peer* peer = find(to);
  return peer == nullptr ? 0 : peer->connection->produced();
}

bool MessageEndpointCore::has_left(PeerIndex to, std::uint64_t mark) const {
  Peer* peer = find(to);
  return peer == nullptr || peer->connection->known_consumed() >= mark;
}

std::atomic<std::uint64_t>* MessageEndpointCore::shared_word(std::size_t offset) {
  const bool there = front_.peer != nullptr && !front_.offered && !front_.assembled &&
                     front_.peer->connection->mapped() && offset <= front_.size &&
                     front_.size - offset >= sizeof(std::uint64_t);
  if (!there || offset % sizeof(std::uint64_t) != 0) return nullptr;  // a record's payload is aligned
  return reinterpret_cast<std::atomic<std::uint64_t>*>(const_cast<std::byte*>(front_.record.payload) + offset);
}

void MessageEndpointCore::hold() {
  if (Peer* peer = std::exchange(front_.peer, nullptr)) peer->held = Peer::Held::kYes;
}

void MessageEndpointCore::resume(PeerIndex index) {
  Peer* peer = find(index);
  if (peer == nullptr) return;
  peer->held = peer->assembled ? Peer::Held::kShowAgain : Peer::Held::kNo;
  arrivals_->post(peer->event);  // it may have become cold meanwhile
}

void MessageEndpointCore::nudge(PeerIndex to) {
  Peer* peer = find(to);
  if (peer != nullptr && peer->connection->mapped()) peer->connection->nudge();
}

bool MessageEndpointCore::has_gone(PeerIndex index) const {
  Peer* peer = find(index);
  return peer == nullptr || peer->connection->peer_gone();
}

Result<MessageInfo> MessageEndpointCore::try_recv(std::span<std::byte> buffer) {
  while (find_front()) {
    // A message that its sender took back is no reason to say that there is none.
    auto m = take(buffer);
    if (m.ok() || m.error().err != EAGAIN) return m;
  }
  if (!context_->usable()) return unusable_error();
  progress_sends();
  return Error{EAGAIN, "no message"};
}

bool MessageEndpointCore::hot_pending() const {
  for (const Peer* peer : hot_) {
    if (peer->connection->readable() || peer->connection->peer_gone()) return true;
  }
  return false;
}

Result<MessageInfo> MessageEndpointCore::recv(std::span<std::byte> buffer, std::uint64_t deadline_ns) {
  for (;;) {
    // Hot rings first and for a while: a peer in conversation answers within a few cache-line transfers.
    for (int i = 0; i < kHotLooks; ++i) {
      if (hot_pending()) break;
    }
    if (find_front() && !front_.offered && !front_.assembled) [[likely]] return take(buffer);
    auto m = try_recv(buffer);
    if (m.ok() || m.error().err != EAGAIN) return m;
    if (auto s = tell_departure(); !s) return s.error();
    Status s;
    const auto asleep = [&] {
      s = sleep(deadline_ns);
      return s.ok();
    };
    if (std::exchange(armed_fd_, false)) waiter_.slept();
    if (waiter_.wait([&] { return something_new(); }, awaited(), deadline_ns, asleep) == Waited::kTimedOut) {
      return Error{ETIMEDOUT, "no message in time"};
    }
    if (!s) return s.error();
  }
}

bool MessageEndpointCore::something_new() {
  return hot_pending() || arrivals_->pending() || progress_sends();
}

// The peer of the next ring that will be looked at.
Awaited MessageEndpointCore::awaited() const {
  const std::uint16_t cpu = hot_.empty() ? 0 : hot_[next_hot_ % hot_.size()]->connection->peer_cpu();
  return {cpu, false, copied_until_ns_};
}

bool MessageEndpointCore::spin(std::uint64_t deadline_ns) {
  if (std::exchange(armed_fd_, false)) waiter_.slept();
  return waiter_.spin([&] { return something_new(); }, awaited(), deadline_ns);
}

// Something that no event will tell of, as it has been taken already.
bool MessageEndpointCore::something_told() const {
  return front_.peer != nullptr || !sent_.empty() || !departed_.empty() || !context_->usable();
}

Status MessageEndpointCore::sleep_unspun(std::uint64_t deadline_ns) {
  if (!context_->usable()) return unusable_error();
  if (something_told() || !waiter_.may_sleep()) return {};
  auto slept = sleep(deadline_ns);
  waiter_.slept();
  if (slept.ok() && deadline_ns != kNoDeadline && monotonic_ns() >= deadline_ns && !arrivals_->pending()) {
    return Error{ETIMEDOUT, "no message in time"};
  }
  return slept;
}

bool MessageEndpointCore::arm_fd() {
  if (something_told() || cool()) return false;
  armed_fd_ = arrivals_->arm_fd();
  return armed_fd_;
}

// Everyone becomes cold. True: sends have moved meanwhile, there is something to look at.
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
  for (Peer* peer : cooled) {
    if (peer->connection->readable() || peer->connection->peer_gone()) arrivals_->post(peer->event);
  }
  return progress_sends();
}

// Offers are answered in a line that the same tripwires cover, so one queue wakes us for all.
Status MessageEndpointCore::sleep(std::uint64_t deadline_ns) {
  if (cool()) return {};
  return arrivals_->wait_only(deadline_ns);
}

// --- events ----------------------------------------------------------------------------------------

void MessageEndpointCore::bind_peer(Peer& peer) {
  Connection& c = *peer.connection;
  // Younger than the one that posts to arrivals_, so it fires second: whoever takes the event finds the
  // peer there.
  auto tripwire = c.add_event_tripwire(user_queue_->index(), user_event_);
  if (!tripwire) return;
  c.also_notify(user_queue_, user_event_);
  c.nic().arm(*tripwire);
  // Whoever writes just now may have walked past the end of the chain before this tripwire was there: he
  // will post to arrivals_ alone, later than the application looks. What he wrote can be seen already.
  if (c.readable() || c.peer_gone()) arrivals_->post(peer.event);
  user_queue_->post(user_event_);
}

Status MessageEndpointCore::bind(std::shared_ptr<EventQueueCore> queue, std::uint64_t tag) {
  if (user_queue_) return Error{EBUSY, "the endpoint is registered with an event queue already"};
  auto event = queue->add(EventKind::kMessage, tag);
  if (!event) return event.error();
  {
    std::lock_guard lock(mutex_);
    user_event_ = *event;
    user_queue_ = std::move(queue);
  }
  for (auto& peer : peers_) {
    if (peer && peer->connection) bind_peer(*peer);
  }
  user_queue_->post(user_event_);
  return {};
}

}  // namespace clan::engine

namespace clan {

using engine::MessageEndpointCore;

MessageEndpoint::MessageEndpoint(std::shared_ptr<MessageEndpointCore> core) : core_(std::move(core)) {}
MessageEndpoint::MessageEndpoint(MessageEndpoint&&) noexcept = default;
MessageEndpoint& MessageEndpoint::operator=(MessageEndpoint&&) noexcept = default;
MessageEndpoint::~MessageEndpoint() = default;

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
  return core_->connect(service, core_->context().owner(uid),
                        deadline_after_ms(timeout_ms));
}
Result<PeerIndex> MessageEndpoint::begin_connect(const std::string& service,
                                                 std::span<const std::span<const std::byte>> greetings,
                                                 std::int64_t timeout_ms, std::int64_t uid) {
  return core_->begin_connect(service, core_->context().owner(uid), greetings, deadline_after_ms(timeout_ms));
}
Status MessageEndpoint::await(PeerIndex peer, std::int64_t timeout_ms) {
  return core_->await(peer, deadline_after_ms(timeout_ms));
}
Result<Address> MessageEndpoint::peer_address(PeerIndex peer) const { return core_->peer_address(peer); }
void MessageEndpoint::disconnect(PeerIndex peer) { core_->disconnect(peer); }
Status MessageEndpoint::send(PeerIndex to, std::span<const std::byte> message, std::int64_t timeout_ms) {
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
Result<int> MessageEndpoint::fd() { return core_->fd(); }
bool MessageEndpoint::arm_fd() { return core_->arm_fd(); }
void MessageEndpoint::ring_fd() { core_->ring_fd(); }
Result<MessageInfo> MessageEndpoint::try_recv(std::span<std::byte> buffer) {
  return core_->try_recv(buffer);
}
Result<MessageInfo> MessageEndpoint::recv(std::span<std::byte> buffer, std::int64_t timeout_ms) {
  return core_->recv(buffer, deadline_after_ms(timeout_ms));
}
Result<IncomingMessage> MessageEndpoint::peek() { return core_->peek(); }
Result<MessageInfo> MessageEndpoint::take(std::span<std::byte> buffer) { return core_->take(buffer); }
void MessageEndpoint::drop() { core_->drop(); }
Result<SetAside> MessageEndpoint::set_aside() { return core_->set_aside(); }
Status MessageEndpoint::copy(const SetAside& message, std::uint64_t offset, std::span<std::byte> buffer) {
  return core_->copy(message, offset, buffer);
}
void MessageEndpoint::finish(const SetAside& message, bool received) { core_->finish(message, received); }
bool MessageEndpoint::shares_messages(PeerIndex to) const { return core_->shares_messages(to); }
std::uint64_t MessageEndpoint::sent_mark(PeerIndex to) const { return core_->sent_mark(to); }
bool MessageEndpoint::has_left(PeerIndex to, std::uint64_t mark) const { return core_->has_left(to, mark); }
std::atomic<std::uint64_t>* MessageEndpoint::shared_word(std::size_t offset) { return core_->shared_word(offset); }
void MessageEndpoint::hold() { core_->hold(); }
void MessageEndpoint::resume(PeerIndex peer) { core_->resume(peer); }
void MessageEndpoint::nudge(PeerIndex to) { core_->nudge(to); }
bool MessageEndpoint::has_gone(PeerIndex peer) const { return core_->has_gone(peer); }
bool MessageEndpoint::take_departed(PeerIndex* peer, int* reason) {
  return core_->take_departed(peer, reason);
}
Status MessageEndpoint::register_with(EventQueue& queue, std::uint64_t tag) {
  return core_->bind(queue.core(), tag);
}

}  // namespace clan

#include "port.h"

#include <clan/clock.h>

#include <algorithm>
#include <cstdlib>

#include "counter.h"
#include "domain.h"
#include "endpoint.h"
#include "pieces.h"
#include "port_list.h"

namespace clan::ofi {
namespace {

constexpr std::int64_t kConnectMs = 10'000;
// A first message waits for the peer's driver thread, under the lock: so not long, and not again for a while
// once that was in vain. It answers in microseconds unless it is stopped or the machine very busy.
constexpr std::int64_t kPatienceMs = 200;
constexpr std::uint64_t kImpatientNs = 1'000'000'000u;
constexpr int kMostMessages = 64;  ///< taken in one call of progress()
constexpr std::uint16_t kFirstFreePort = 32768;
constexpr std::size_t kEagerBytes = 16384;
constexpr std::size_t kMostStrangers = 16;  ///< who have introduced themselves, and not said why
constexpr std::size_t kMostEager = 1u << 20;

MessageOptions message_options() {
  MessageOptions options;
  std::size_t eager = kEagerBytes;
  (void)fi_param_get_size_t(&g_provider, "eager_bytes", &eager);
  options.eager_bytes =
      static_cast<std::uint32_t>(std::clamp(eager, kMaxDatagram, kMostEager) + sizeof(WireHeader));
  options.max_message = kMaxMessage + sizeof(WireHeader);
  return options;
}

}  // namespace

// --- PortList --------------------------------------------------------------------------------------

void PortList::add(Port& port) {
  for (auto& [known, times] : ports_) {
    if (known == &port) {
      ++times;
      return;
    }
  }
  ports_.emplace_back(&port, 1u);
}

void PortList::remove(Port& port) {
  std::erase_if(ports_, [&port](auto& entry) { return entry.first == &port && --entry.second == 0; });
}

void PortList::progress(const Cq* until) {
  for (const auto& [port, times] : ports_) {
    port->tidy();
    port->progress(until);
    if (until != nullptr && !until->empty()) return;
  }
}

// --- life ------------------------------------------------------------------------------------------

Port::~Port() {
  if (messages_) finish_accesses();
  if (turned_away_ > 0)
    FI_INFO(&g_provider, FI_LOG_EP_CTRL, "port %u: %llu messages of strangers\n", address_.port(),
            static_cast<unsigned long long>(turned_away_));
  while (Unexpected* message = homeless_.first()) {
    homeless_.remove(*message);
    Unexpected::destroy(message);
  }
}

Result<MessageEndpoint> take_name(Context& context, const SocketAddress& wanted,
                                  const MessageOptions& options, SocketAddress* taken) {
  *taken = wanted.valid() ? wanted : own_address(AF_INET);
  if (taken->is_any()) {
    const std::uint16_t port = taken->port();
    *taken = own_address(taken->family());
    taken->set_port(port);
  }
  const bool any_port = taken->port() == 0;
  constexpr int kAttempts = 1000;
  for (int attempt = 0;; ++attempt) {
    if (any_port) {
      taken->set_port(
          static_cast<std::uint16_t>(kFirstFreePort + arc4random_uniform(65536 - kFirstFreePort)));
    }
    const Name name = name_of(*taken);
    if (!name.local()) return Error{EADDRNOTAVAIL, "not an address of this host"};
    auto made = MessageEndpoint::create(context, service_of(name), options);
    if (made.ok() || made.error().err != EADDRINUSE || !any_port || attempt == kAttempts) {
      if (!made) {
        FI_WARN(&g_provider, FI_LOG_EP_CTRL, "%s: %s\n", to_text(*taken).c_str(),
                made.error().message().c_str());
      }
      return made;
    }
  }
}

int Port::start(const SocketAddress& wanted) {
  if (messages_) return 0;
  auto taken = take_name(domain_.context(), wanted, message_options(), &address_);
  if (!taken) return failure(taken.error());
  messages_.emplace(std::move(*taken));
  const int rc = domain_.add_port(*this);
  if (rc != 0) messages_.reset();  // it may be tried again
  return rc;
}

// More than once does no harm.
int Port::register_with(EventQueue& events) {
  if (registered_) return 0;
  if (auto s = messages_->register_with(events, 0); !s) return failure(s.error());
  registered_ = true;
  return 0;
}

void Port::attach(Endpoint& endpoint, unsigned context) {
  if (endpoints_.size() <= context) endpoints_.resize(context + 1);
  endpoints_[context] = &endpoint;
  for (Unexpected* message = homeless_.first(); message != nullptr;) {
    Unexpected* next = message->next;
    if (message->header.context == context) {
      homeless_.remove(*message);
      message->to = &endpoint;
      const bool tagged = message->header.op == Op::kTagged;
      endpoint.receives()
          .unexpected(tagged ? ReceiveQueue::kTagged : ReceiveQueue::kUntagged)
          .push_back(*message);
    }
    message = next;
  }
}

bool Port::uses(const Counter& counter) const {
  const auto counts = [&](const auto& operation) {
    return operation->live && operation->owner != nullptr && operation->counter == &counter;
  };
  if (std::any_of(operations_.begin(), operations_.end(), counts)) return true;
  for (Endpoint* endpoint : endpoints_) {
    if (endpoint == nullptr) continue;
    for (auto kind : {ReceiveQueue::kUntagged, ReceiveQueue::kTagged}) {
      for (const Posted* p = endpoint->receives().posted(kind).first(); p != nullptr; p = p->next)
        if (p->deferred && p->counter == &counter) return true;
    }
  }
  return false;
}

void Port::forget(const Endpoint& endpoint) {
  for (auto& operation : operations_) {
    if (operation->live && operation->owner == &endpoint) operation->owner = nullptr;
  }
  // Its memory is its program's again.
  for (Peer* peer : slow_) {
    if (!peer->slow) continue;
    Operation* operation = peer->slow->operation;
    if (operation == nullptr) operation = peer->accesses->front().operation;
    if (operation->owner != nullptr) continue;
    const bool is_front = peer->slow->operation == nullptr;
    peer->slow.reset();
    if (!is_front) finish(*operation, ECANCELED);
  }
}

void Port::detach(Endpoint& endpoint, unsigned context) {
  if (context < endpoints_.size() && endpoints_[context] == &endpoint) endpoints_[context] = nullptr;
  endpoint.receives().for_each_unexpected([&](List<Unexpected>& list, Unexpected& message) {
    if (message.to != &endpoint) return;
    list.remove(message);
    Unexpected::destroy(&message);
  });
}

// --- peers -----------------------------------------------------------------------------------------

Peer& Port::peer_named(const Name& name) {
  if (auto known = peers_.find(name); known != peers_.end()) return *known->second;
  // What we owe a peer must not fail for want of memory to remember that.
  if (crowded_.capacity() <= peers_.size()) crowded_.reserve(2 * peers_.size() + 8);
  auto peer = std::make_unique<Peer>();
  peer->name = name;
  return *peers_.try_emplace(name, std::move(peer)).first->second;
}

Peer* Port::peer_slowly(fi_addr_t address) {
  // First, as another process may change a vector that has a name.
  const std::uint32_t generation = av_->generation();
  const Name* name = av_->find(address);
  if (name == nullptr) return nullptr;
  if (by_address_generation_ != generation) {
    by_address_.clear();
    by_address_generation_ = generation;
  }
  if (by_address_.size() <= address) by_address_.resize(address + 1);
  return by_address_[address] = &peer_named(*name);
}

fi_addr_t Port::find_address(Peer& peer) {
  peer.generation = av_generation();
  peer.address = av_ != nullptr ? av_->find(peer.name) : FI_ADDR_NOTAVAIL;
  return peer.address;
}

// Asks for a connection. Who connects introduces itself; `first`, if any, follows at once. The driver threads
// see to it that both get there, whether or not the program makes progress.
int Port::begin_connect(Peer& peer, std::span<const std::byte> first) {
  if (!peer.name.local()) return -FI_EHOSTUNREACH;
  struct {
    WireHeader header{.op = Op::kHello};
    Hello hello;
  } greeting;
  greeting.hello.length = address_.length;
  std::memcpy(&greeting.hello.address, &address_.storage, address_.length);
  const std::span<const std::byte> greetings[] = {bytes_of(greeting), first};
  auto index = messages_->begin_connect(service_of(peer.name),
                                        std::span(greetings).first(first.empty() ? 1 : 2), kConnectMs);
  if (!index) {
    FI_INFO(&g_provider, FI_LOG_EP_CTRL, "port %u: %s\n", peer.name.port, index.error().message().c_str());
    return failure(index.error());
  }
  try {
    remember(*index, &peer);
  } catch (const std::bad_alloc&) {
    messages_->disconnect(*index);
    throw;
  }
  peer.pending = *index;
  peer.introduced = !first.empty();
  return 0;
}

int Port::ready_slowly(Peer& peer) {
  if (peer.barriers > 0) {
    progress();
    if (peer.barriers > 0) return -FI_EAGAIN;
  }
  return connected(peer);
}

int Port::connected(Peer& peer) {
  if (peer.index != kNoPeer) return 0;
  return connects_ || peer.pending != kNoPeer ? connect(peer) : -FI_ENOTCONN;
}

void Port::be_patient(Peer& peer) {
  if (monotonic_ns() < impatient_until_) return;
  auto s = messages_->await(peer.pending, kPatienceMs);
  if (!s && s.error().err == EAGAIN) impatient_until_ = monotonic_ns() + kImpatientNs;
}

int Port::connect(Peer& peer) {
  if (peer.pending == kNoPeer) {
    if (const int err = std::exchange(peer.failure, 0); err != 0) return -err;
    if (const int rc = begin_connect(peer, {}); rc != 0) return rc;
    be_patient(peer);
    // It may be connecting to us as well: see arrived_hello().
    progress();
    if (peer.index != kNoPeer) return 0;
    if (peer.pending == kNoPeer) return peer.failure != 0 ? -std::exchange(peer.failure, 0) : -FI_EAGAIN;
  }
  return accepted(peer);
}

// 0; -FI_EAGAIN: it has yet to accept; or why it never will.
int Port::accepted(Peer& peer) {
  const PeerIndex index = peer.pending;
  if (auto s = messages_->await(index, 0); !s) {
    if (s.error().err == EAGAIN) return -FI_EAGAIN;
    FI_INFO(&g_provider, FI_LOG_EP_CTRL, "port %u: %s\n", peer.name.port, s.error().message().c_str());
    departed(index, s.error().err);
    if (peer.index != kNoPeer) return 0;
    peer.failure = 0;
    return failure(s.error());
  }
  peer.pending = kNoPeer;
  send_by(peer, index);
  (void)flush(peer);  // introduce() may have been there first
  return 0;
}

void Port::send_by(Peer& peer, PeerIndex index) {
  peer.send_by(index);
  if (auto where = messages_->peer_address(index); where.ok()) {
    peer.node = where->node.value;
    peer.uid = where->uid;
  }
}

// A connection that it has yet to accept is not wanted any more.
void Port::give_up(Peer& peer) {
  const PeerIndex index = std::exchange(peer.pending, kNoPeer);
  if (index == kNoPeer) return;
  forget_connection(index);
  messages_->disconnect(index);
}

namespace {

// Not valid(): it speaks another version, or none.
SocketAddress introduced_as(std::span<const std::byte> bytes) {
  Hello hello;
  if (!take_front(bytes, &hello) || hello.version != kWireVersion || hello.length > sizeof hello.address)
    return {};
  return read_address(&hello.address, hello.length);
}

}  // namespace

void Port::arrived_hello(PeerIndex from, std::span<const std::byte> bytes) {
  SocketAddress address = introduced_as(bytes);
  if (address.valid() && name_of(address) == name_of(address_)) {
    auto node = messages_->peer_address(from);
    if (!node || node->node != messages_->address().node) address = {};  // nobody else has our name
  }
  if (!address.valid()) {
    FI_WARN(&g_provider, FI_LOG_EP_CTRL, "a peer that speaks another version, or none, was refused\n");
    messages_->drop();
    messages_->disconnect(from);
    return;
  }
  messages_->drop();
  Peer& peer = peer_named(name_of(address));
  peer.raw = address;
  remember(from, &peer);
  if (peer.index != kNoPeer) return;
  // Both connect to each other: one of the two connections will do, that of who has the lesser name.
  if (peer.pending != kNoPeer && (peer.introduced || !(peer.name < name_of(address_)))) return;
  give_up(peer);
  send_by(peer, from);
  (void)flush(peer);
}

// The passive endpoint that we wait for, if it is that.
Peer* Port::asked_by(PeerIndex index) const {
  Peer* const asked = !endpoints_.empty() && endpoints_[0] != nullptr ? endpoints_[0]->asked() : nullptr;
  return asked != nullptr && (index == asked->pending || index == asked->index) ? asked : nullptr;
}

void Port::turn_away(PeerIndex stranger) {
  std::erase_if(strangers_, [stranger](const Stranger& s) { return s.index == stranger; });
  messages_->disconnect(stranger);
}

// A message of who is no peer of ours, or not yet. A message endpoint has one peer, by the connection that it
// has made or been granted; nobody else is heard, by whatever name.
void Port::arrived_from_stranger(PeerIndex from, const WireHeader& header, std::span<const std::byte> bytes) {
  if (connects_) {
    if (header.op == Op::kHello) return arrived_hello(from, bytes);
    return messages_->drop();
  }
  Endpoint* const endpoint = !endpoints_.empty() ? endpoints_[0] : nullptr;
  const bool waits = endpoint != nullptr && endpoint->asked() != nullptr;
  const bool from_asked = waits && asked_by(from) != nullptr;
  Peer* leaves = nullptr;
  if (from_asked && header.op == Op::kReject) leaves = endpoint->answered(nullptr, header, bytes);
  if (leaves != nullptr) {
    messages_->drop();
    return hang_up(*leaves);
  }
  if (waits && !from_asked && header.op == Op::kAccept && arrived_acceptance(from, header, bytes)) return;
  if (waits && !from_asked && header.op == Op::kHello && strangers_.size() < kMostStrangers) {
    const bool known = std::any_of(strangers_.begin(), strangers_.end(),
                                   [from](const Stranger& s) { return s.index == from; });
    const SocketAddress raw = introduced_as(bytes);
    if (!known && raw.valid()) {
      messages_->drop();
      strangers_.push_back({from, raw});
      return;
    }
  }
  messages_->drop();
  ++turned_away_;
  if (!from_asked) turn_away(from);
}

// False: it is not the one that we wait for.
bool Port::arrived_acceptance(PeerIndex from, const WireHeader& header, std::span<const std::byte> bytes) {
  Endpoint& endpoint = *endpoints_[0];
  const auto stranger = std::find_if(strangers_.begin(), strangers_.end(),
                                     [from](const Stranger& s) { return s.index == from; });
  if (stranger == strangers_.end() || !endpoint.waits_for(header.tag)) return false;
  if (name_of(stranger->raw) == endpoint.asked()->name) return false;
  Peer& peer = peer_named(name_of(stranger->raw));
  Peer* const leaves = endpoint.answered(&peer, header, bytes);
  messages_->drop();
  peer.raw = stranger->raw;
  strangers_.erase(stranger);
  remember(from, &peer);
  send_by(peer, from);
  hang_up(*leaves);
  while (!strangers_.empty()) turn_away(strangers_.back().index);
  return true;
}

void Port::departed(PeerIndex index, int reason) {
  Peer* peer = index < by_index_.size() ? by_index_[index] : nullptr;
  messages_->disconnect(index);
  if (peer == nullptr && !connects_) {
    std::erase_if(strangers_, [index](const Stranger& s) { return s.index == index; });
    peer = asked_by(index);
  }
  if (peer == nullptr) return;
  forget_connection(index);
  // What it had offered cannot be had any more.
  const auto forget_offer = [&](List<Unexpected>& list, Unexpected& message) {
    if (message.from != peer || !message.offered || message.aside.from != index) return;
    list.remove(message);
    Unexpected::destroy(&message);
  };
  for (Endpoint* endpoint : endpoints_) {
    if (endpoint != nullptr) endpoint->receives().for_each_unexpected(forget_offer);
  }
  homeless_.for_each(forget_offer);
  const bool unaccepted = peer->pending == index;
  if (!unaccepted && peer->index != index) return;
  if (unaccepted) {
    peer->pending = kNoPeer;
    peer->failure = reason != 0 ? reason : ECONNRESET;
  } else {
    peer->send_by(kNoPeer);
    abandon(*peer, ECONNRESET);
  }
  // It may have connected to us while we connected to it, and lives on by that.
  const bool others = peer->connections > (peer->pending != kNoPeer ? 1u : 0u);
  for (PeerIndex other = 0; others && peer->index == kNoPeer && other < by_index_.size(); ++other) {
    if (by_index_[other] == peer && other != peer->pending) send_by(*peer, other);
  }
  if (peer->index != kNoPeer) {
    peer->failure = 0;
    (void)flush(*peer);
    return;
  }
  peer->forget_answers();
  for (Endpoint* endpoint : endpoints_) {
    if (endpoint != nullptr) endpoint->peer_left(*peer, reason);
  }
}

void Port::abandon(Peer& peer, int err) {
  peer.doomed = false;
  peer.forget_answers();
  peer.regions.clear();
  if (peer.accesses) peer.accesses->first = peer.accesses->end;  // their operations end below
  peer.slow.reset();
  peer.atomics = 0;
  for (auto& operation : operations_) {
    if (!operation->live || operation->peer != &peer || !operation->waits_for_answer) continue;
    operation->waits_for_answer = false;
    operation->err = err;
    settle(*operation);
  }
}

// An endpoint that meets many peers, one after the other, does not remember them all.
void Port::forget_peers() {
  for (auto& [name, peer] : peers_) {
    // `failure`: the next who sends is to hear of it.
    peer->wanted = peer->connections > 0 || peer->pending != kNoPeer || peer->failure != 0 || peer->crowded ||
                   (peer->accesses && peer->accesses->listed);
  }
  const auto wants_sender = [](List<Unexpected>&, Unexpected& message) { message.from->wanted = true; };
  homeless_.for_each(wants_sender);
  for (Endpoint* endpoint : endpoints_) {
    if (endpoint == nullptr) continue;
    endpoint->want_peers();
    ReceiveQueue& queue = endpoint->receives();
    queue.for_each_unexpected(wants_sender);
    for (auto kind : {ReceiveQueue::kUntagged, ReceiveQueue::kTagged}) {
      for (Posted* posted = queue.posted(kind).first(); posted != nullptr; posted = posted->next) {
        if (posted->from != nullptr) posted->from->wanted = true;
      }
    }
  }
  for (const auto& operation : operations_) {
    if (operation->live) operation->peer->wanted = true;
  }
  for (Peer* peer : slow_) peer->wanted = true;
  for (Peer*& peer : by_address_) {
    if (peer != nullptr && !peer->wanted) peer = nullptr;
  }
  std::erase_if(peers_, [](const auto& entry) { return !entry.second->wanted; });
  most_peers_ = 2 * peers_.size() + kFewPeers;
}

int Port::introduce(const Name& to, const WireHeader& header, const void* data, std::size_t length, bool hear,
                    Peer** peer) {
  *peer = &peer_named(to);
  Peer& other = **peer;
  if (other.index != kNoPeer) return static_cast<int>(send_at_once(other, header, data, length));
  std::vector<std::byte> message(sizeof header + length);
  std::memcpy(message.data(), &header, sizeof header);
  if (length > 0) std::memcpy(message.data() + sizeof header, data, length);
  // No progress here: our caller has yet to note whom it has asked.
  other.failure = 0;
  if (other.pending != kNoPeer) {
    answer(other, message.data(), message.size());
    return 0;
  }
  if (const int rc = begin_connect(other, message); rc != 0) return rc;
  if (!hear) forget_connection(other.pending);
  be_patient(other);
  return 0;
}

void Port::hang_up(Peer& peer) {
  finish_accesses(peer);
  give_up(peer);
  const PeerIndex index = peer.index;
  peer.send_by(kNoPeer);
  if (index != kNoPeer) {
    forget_connection(index);
    std::erase_if(held_, [index](const HeldMessage& held) { return held.from == index; });
    messages_->disconnect(index);
  }
  abandon(peer, ECANCELED);
}

// --- operations ------------------------------------------------------------------------------------

Operation& Port::make_operation(Endpoint* owner, Peer& peer, const Sending& sending) {
  if (free_operations_ == nullptr) {
    operations_.push_back(std::make_unique<Operation>());
    operations_.back()->id = static_cast<std::uint32_t>(operations_.size() - 1);
    free_operations_ = operations_.back().get();
  }
  Operation& operation = *free_operations_;
  free_operations_ = operation.next;
  operation.next = nullptr;
  operation.live = true;
  ++operation.generation;
  operation.waits_for_copy = operation.waits_for_answer = false;
  operation.err = 0;
  operation.owner = owner;
  operation.peer = &peer;
  operation.context = sending.context;
  operation.flags = sending.flags;
  operation.completion = sending.completion;
  operation.counter = sending.counter;
  operation.gathered.clear();
  operation.result_count = 0;
  return operation;
}

// Whether a peer may be asked for so much more.
bool Port::may_ask(Peer& peer, std::size_t bytes) {
  if (peer.owed + bytes <= kMostOwed) [[likely]]
    return true;
  progress();
  return peer.owed + bytes <= kMostOwed;
}

// An operation that has been sent: its answer brings so much.
void Port::charge(Operation& operation, std::size_t bytes, bool is_barrier) {
  Peer& peer = *operation.peer;
  operation.owed = bytes;
  peer.owed += bytes;
  if (!is_barrier) return;
  operation.is_barrier = true;
  ++peer.barriers;
  peer.send_by(peer.index);
}

// One of the things that an operation waits for has come.
void Port::settle(Operation& operation) {
  if (operation.waits_for_copy || operation.waits_for_answer) return;
  finish(operation, operation.err);
}

void Port::release(Operation& operation) {
  operation.live = false;
  if (operation.owed != 0) {
    Peer& peer = *operation.peer;
    peer.owed -= std::exchange(operation.owed, 0);
    if (std::exchange(operation.is_barrier, false) && --peer.barriers == 0) peer.send_by(peer.index);
  }
  if (operation.gathered.capacity() > 65536) std::vector<std::byte>().swap(operation.gathered);
  operation.next = free_operations_;
  free_operations_ = &operation;
}

void Port::finish(Operation& operation, int err) {
  release(operation);
  if (operation.owner == nullptr) return;
  if (err != 0) {
    if (operation.counter != nullptr) operation.counter->count_error();
    if (Cq* cq = operation.owner->send_cq()) {
      cq->write_error({.context = operation.context, .flags = operation.flags}, err);
    }
    return;
  }
  if (operation.counter != nullptr) operation.counter->count();
  if (operation.completion) {
    operation.owner->send_cq()->write({.context = operation.context, .flags = operation.flags});
  }
}

// Seldom asked for, so nobody keeps account of it.
int Port::fence(Peer& peer) {
  const auto busy = [&](const auto& operation) { return operation->live && operation->peer == &peer; };
  for (int attempt = 0; std::any_of(operations_.begin(), operations_.end(), busy); ++attempt) {
    if (attempt > 0) return -FI_EAGAIN;
    progress();
    finish_accesses(peer);
  }
  return 0;
}

// --- sending ---------------------------------------------------------------------------------------

ssize_t Port::send_after_progress(Peer& to, const WireHeader& header, const void* bytes, std::size_t length) {
  if (int rc = ready(to); rc != 0) return rc;
  for (int attempt = 0;; ++attempt) {
    const Status sent = send_whole(to, header, bytes, length);
    if (sent.ok()) return 0;
    // Of a peer that has gone progress() hears, and the next attempt connects anew.
    if (sent.error().err != EAGAIN && attempt > 0) return failure(sent.error());
    if (attempt > 0) return -FI_EAGAIN;
    progress();
    if (int rc = ready(to); rc != 0) return rc;
  }
}

ssize_t Port::send(Endpoint& from, Peer& to, const Sending& sending) {
  if (int rc = ready(to); rc != 0) return rc;
  const std::size_t total = sizeof(WireHeader) + sending.length;
  const bool whole = sending.length <= kInjectBytes;  // through the ring, header and all
  if (whole && !sending.delivery) {
    for (int attempt = 0;; ++attempt) {
      auto room = messages_->reserve(to.index, total);
      if (room.ok()) {
        std::memcpy(room->data(), &sending.header, sizeof(WireHeader));
        gather(room->data() + sizeof(WireHeader), sending.iov, sending.count);
        messages_->commit(to.index, total);
        if (sending.counter != nullptr) sending.counter->count();
        if (sending.completion) from.send_cq()->write({.context = sending.context, .flags = sending.flags});
        return 0;
      }
      if (attempt > 0) return room.error().err == EAGAIN ? -FI_EAGAIN : failure(room.error());
      progress();
      if (int rc = ready(to); rc != 0) return rc;
    }
  }
  if (sending.delivery && !may_ask(to, kAnswerCost)) return -FI_EAGAIN;
  Operation& operation = make_operation(&from, to, sending);
  WireHeader header = sending.header;
  header.id = operation.id;
  if (sending.delivery) {
    header.flags |= kWantsAck;
    operation.answer = Op::kAck;
  }
  const ssize_t rc = post(operation, bytes_of(header), sending, sending.delivery);
  if (rc == 0 && sending.delivery) charge(operation, kAnswerCost, false);
  return rc;
}

ssize_t Port::post(Operation& operation, std::span<const std::byte> header, const Sending& sending,
                   bool waits_for_answer) {
  Peer& to = *operation.peer;
  std::span<const std::byte> body(
      sending.count > 0 ? static_cast<const std::byte*>(sending.iov[0].iov_base) : nullptr, sending.length);
  if (sending.count > 1 || sending.inject) {
    try {
      operation.gathered.resize(sending.length);
    } catch (const std::bad_alloc&) {
      release(operation);
      throw;
    }
    gather(operation.gathered.data(), sending.iov, sending.count);
    body = operation.gathered;
  }
  const std::uint64_t cookie = reinterpret_cast<std::uint64_t>(&operation);
  auto posted = messages_->post(to.index, header, body, cookie);
  if (!posted) {
    progress();
    const int rc = ready(to);
    if (rc == 0) posted = messages_->post(to.index, header, body, cookie);
    if (!posted) {
      release(operation);
      return rc != 0 ? rc : failure(posted.error());
    }
  }
  operation.waits_for_copy = !*posted;
  // Not before: should the peer be found to have gone, it is our caller who hears of it.
  operation.waits_for_answer = waits_for_answer;
  if (operation.waits_for_copy) ++posted_sends_;
  settle(operation);
  return 0;
}

ssize_t Port::start_atomic(Endpoint& from, Peer& to, const Sending& sending, const iovec* results,
                           std::size_t result_count) {
  std::size_t owed = kAnswerCost;
  for (std::size_t i = 0; i < result_count; ++i) owed += results[i].iov_len;
  if (!may_ask(to, owed)) return -FI_EAGAIN;
  if (int rc = ready(to); rc != 0) return rc;
  const std::size_t total = sizeof(WireHeader) + sending.length;
  auto room = messages_->reserve(to.index, total);
  if (!room) {
    progress();
    if (int rc = ready(to); rc != 0) return rc;
    room = messages_->reserve(to.index, total);
    if (!room) return failure(room.error());
  }
  Operation& operation = make_operation(&from, to, sending);
  operation.waits_for_answer = true;
  operation.answer = Op::kAtomicReply;
  operation.result_count = static_cast<std::uint32_t>(result_count);
  std::copy(results, results + result_count, operation.results);
  WireHeader header = sending.header;
  header.id = operation.id;
  std::memcpy(room->data(), &header, sizeof header);
  gather(room->data() + sizeof header, sending.iov, sending.count);
  messages_->commit(to.index, total);
  charge(operation, owed, false);
  ++to.atomics;
  ++to.atomics_sent;
  return 0;
}

// Something small that must get there, though there be no room now.
void Port::answer(Peer& peer, const void* message, std::size_t length) {
  if (peer.index == kNoPeer && peer.pending == kNoPeer) return;
  const auto* bytes = static_cast<const std::byte*>(message);
  if (peer.answers.empty()) {
    if (peer.index != kNoPeer) {
      auto room = messages_->reserve(peer.index, length);
      if (room.ok()) {
        std::memcpy(room->data(), bytes, length);
        messages_->commit(peer.index, length);
        return;
      }
      if (room.error().err != EAGAIN) return;  // it has gone, and needs no answer
    }
  }
  note_crowded(peer);
  try {
    peer.answers.emplace_back(bytes, bytes + length);
    peer.answer_bytes += length + kAnswerCost;
  } catch (const std::bad_alloc&) {
    peer.doomed = any_doomed_ = true;
  }
}

void Port::note_crowded(Peer& peer) {
  if (!std::exchange(peer.crowded, true)) crowded_.push_back(&peer);
}

// True when nothing is left.
bool Port::flush(Peer& peer) {
  if (peer.index == kNoPeer && peer.pending != kNoPeer && !peer.answers.empty()) {
    if (const int rc = accepted(peer); rc == -FI_EAGAIN) return false;
  }
  while (!peer.answers.empty()) {
    const std::vector<std::byte>& message = peer.answers.front();
    auto room = messages_->reserve(peer.index, message.size());
    if (!room) {
      if (room.error().err == EAGAIN) return false;
      peer.forget_answers();
      break;
    }
    std::memcpy(room->data(), message.data(), message.size());
    messages_->commit(peer.index, message.size());
    peer.answer_bytes -= message.size() + kAnswerCost;
    peer.answers.pop_front();
  }
  return carry_on(peer);
}

void Port::acknowledge(Peer& peer, const WireHeader& header) {
  const WireHeader ack{.op = Op::kAck, .id = header.id};
  answer(peer, &ack, sizeof ack);
}

// --- receiving -------------------------------------------------------------------------------------

bool Port::make_progress(const Cq* until) {
  progressing_ = true;
  bool moved = true;
  try {
    moved = work_off(until);
  } catch (const std::bad_alloc&) {
    // Half of something has been done. What of it was a peer's we do not do again: it hears that we are gone.
    break_with(taking_);
  }
  if (any_doomed_) [[unlikely]]
    break_with_doomed();
  progressing_ = false;
  return moved;
}

void Port::break_with(PeerIndex index) {
  FI_WARN(&g_provider, FI_LOG_EP_DATA, "port %u: no memory for what a peer wants\n", address_.port());
  if (index == kNoPeer) return;
  try {
    std::erase_if(held_, [index](const HeldMessage& held) { return held.from == index; });
    departed(index, ENOMEM);
  } catch (const std::bad_alloc&) {
  }
}

void Port::break_with_doomed() {
  any_doomed_ = false;
  for (PeerIndex index = 0; index < by_index_.size(); ++index) {
    Peer* const peer = by_index_[index];
    if (peer == nullptr || !peer->doomed || (peer->index != index && peer->pending != index)) continue;
    peer->doomed = false;
    break_with(index);
  }
}

bool Port::work_off(const Cq* until) {
  bool moved = false;
  taking_ = kNoPeer;
  if (!held_.empty()) [[unlikely]]
    resume_held();
  for (int i = 0; i < kMostMessages; ++i) {
    auto message = messages_->peek();
    if (!message) break;
    taking_ = message->from;
    if (!arrived(*message)) break;
    moved = true;
    if (until != nullptr && !until->empty()) break;
  }
  taking_ = kNoPeer;
  if (posted_sends_ > 0) {
    SendCompletion done[16];
    for (std::size_t n = std::size(done); n == std::size(done);) {
      n = messages_->poll_sent(done);
      for (std::size_t i = 0; i < n; ++i) {
        auto& operation = *reinterpret_cast<Operation*>(done[i].cookie);
        --posted_sends_;
        operation.waits_for_copy = false;
        if (done[i].status != 0) {
          operation.err = done[i].status;
          operation.waits_for_answer = false;
        }
        settle(operation);
        moved = true;
      }
    }
  }
  if (!accessing_.empty()) moved = look_after_accesses() || moved;
  if (!slow_.empty()) [[unlikely]]
    moved = look_after_slow() || moved;
  if (!crowded_.empty()) {
    std::erase_if(crowded_, [this](Peer* peer) {
      peer->crowded = !flush(*peer);
      return !peer->crowded;
    });
  }
  PeerIndex gone;
  int reason;
  while (messages_->take_departed(&gone, &reason)) {
    departed(gone, reason);
    moved = true;
  }
  progressing_ = false;
  return moved;
}

bool Port::arrived(const IncomingMessage& message) {
  std::span<const std::byte> head = message.offered ? message.header : message.bytes;
  WireHeader header;
  Peer* peer = message.from < by_index_.size() ? by_index_[message.from] : nullptr;
  if (!take_front(head, &header)) {
    messages_->drop();
    return true;
  }
  if (peer == nullptr) {
    arrived_from_stranger(message.from, header, head);
    return true;
  }
  if (!crowded_.empty() && must_wait(message.from, *peer, header)) [[unlikely]] {
    messages_->hold();
    held_.push_back({message.from, nullptr});
    return true;
  }
  if (header.op == Op::kMessage || header.op == Op::kTagged) {
    const Taken taken = arrived_for_receive(*peer, header, message);
    if (taken == Taken::kNo) messages_->drop();
    return taken != Taken::kWaits;
  }
  switch (header.op) {
    case Op::kAck:
    case Op::kAtomicReply:
    case Op::kGetReply: arrived_answer(*peer, header, head); break;
    case Op::kRmaDone: arrived_notice(*peer, header, head); break;
    case Op::kPut:
    case Op::kGet:
      if (arrived_access(message.from, *peer, header, head) == Taken::kDropped) return true;
      break;
    case Op::kAtomic: arrived_atomic(*peer, header, head); break;
    case Op::kLongAtomic: arrived_long_atomic(*peer, header, head, message); return true;
    default: break;
  }
  messages_->drop();
  return true;
}

// Whether a request has to wait as its peer does not take the answers to others. Not where it has gone: then
// there is no more to come.
bool Port::must_wait(PeerIndex from, const Peer& peer, const WireHeader& header) {
  bool waits = peer.answer_bytes > kMostKept;
  switch (header.op) {
    case Op::kMessage:
    case Op::kTagged: waits = waits && (header.flags & kWantsAck) != 0; break;
    case Op::kLongAtomic: waits = waits || peer.long_atomic != nullptr; break;
    case Op::kGet:
    case Op::kAtomic: break;
    default: return false;
  }
  return waits && !messages_->has_gone(from);
}

// kNo: the message is still in front, and may go. kWaits: it must not, for there is no memory to keep it.
// Then all that comes after it waits too, and so do the senders when their rings are full; a receive that
// fits it, or memory, ends that.
[[gnu::always_inline]] inline Port::Taken Port::arrived_for_receive(Peer& peer, const WireHeader& header,
                                                                    const IncomingMessage& message) {
  Endpoint* endpoint = header.context < endpoints_.size() ? endpoints_[header.context] : nullptr;
  const auto kind = header.op == Op::kTagged ? ReceiveQueue::kTagged : ReceiveQueue::kUntagged;
  Posted* posted = nullptr;
  if (endpoint != nullptr) [[likely]] {
    ReceiveQueue& queue = endpoint->receives();
    posted =
        kind == ReceiveQueue::kTagged ? queue.match_tagged(&peer, header.tag) : queue.match_message(&peer);
  }
  if (endpoint == nullptr && header.context >= receive_contexts_) return Taken::kNo;  // there will be none
  List<Unexpected>& keep = endpoint != nullptr ? endpoint->receives().unexpected(kind) : homeless_;
  Unexpected* kept = nullptr;
  if (posted == nullptr) {
    // A datagram that is offered is none of a datagram endpoint: it is kept, as where it came from expects.
    const bool may_drop = endpoint != nullptr && endpoint->datagrams() && !message.offered;
    if (may_drop && keep.size() >= kMostUnheard) return Taken::kNo;
    kept = Unexpected::make(message.offered ? 0 : message.bytes.size() - sizeof header);
    if (kept == nullptr) {
      if (may_drop) return Taken::kNo;
      if (!std::exchange(starving_, true))
        FI_WARN(&g_provider, FI_LOG_EP_DATA, "no memory for messages that have come: they wait\n");
      return Taken::kWaits;
    }
    starving_ = false;
  }
  if (message.offered) {
    auto aside = messages_->set_aside();
    if (!aside) {
      if (kept != nullptr) Unexpected::destroy(kept);
      return Taken::kNo;
    }
    if (posted != nullptr) {
      complete_receive(*endpoint, peer, header, message.size, nullptr, &*aside, *posted, endpoint->receives(),
                       kind);
      return Taken::kDropped;
    }
    kept->to = endpoint;
    kept->from = &peer;
    kept->header = header;
    kept->size = message.size;
    kept->offered = true;
    kept->aside = *aside;
    keep.push_back(*kept);
    return Taken::kDropped;
  }
  const std::byte* bytes = message.bytes.data() + sizeof header;
  const std::size_t size = message.bytes.size() - sizeof header;
  if (posted != nullptr) [[likely]] {
    complete_receive(*endpoint, peer, header, size, bytes, nullptr, *posted, endpoint->receives(), kind);
    return Taken::kNo;
  }
  kept->to = endpoint;
  kept->from = &peer;
  kept->header = header;
  kept->size = size;
  if (size > 0) std::memcpy(kept->bytes(), bytes, size);
  keep.push_back(*kept);
  return Taken::kNo;
}

[[gnu::always_inline]] inline void Port::complete_receive(Endpoint& endpoint, Peer& from,
                                                          const WireHeader& header, std::size_t size,
                                                          const std::byte* bytes, const SetAside* aside,
                                                          Posted& posted, ReceiveQueue& queue,
                                                          ReceiveQueue::Kind kind) {
  const std::size_t room = posted.length - posted.used;
  const std::size_t n = std::min(size, room);
  int err = 0;
  if (aside == nullptr) {
    if (posted.pieces == 1) [[likely]] {
      copy_short(static_cast<std::byte*>(posted.iov[0].iov_base) + posted.used, bytes, n);
    } else {
      for_each_piece(posted.iov, posted.pieces, posted.used, n,
                     [&](std::span<std::byte> piece, std::size_t at) {
                       std::memcpy(piece.data(), bytes + at, piece.size());
                     });
    }
  } else {
    for_each_piece(posted.iov, posted.pieces, posted.used, n,
                   [&](std::span<std::byte> piece, std::size_t at) {
                     if (err != 0) return;
                     if (auto s = messages_->copy(*aside, at, piece); !s) err = s.error().err;
                   });
    // Its sender took it back: as if it had never been.
    if (err == ESTALE && !posted.claims) return;
    if (err == ESTALE) {
      err = ECONNRESET;
    } else {
      messages_->finish(*aside, err == 0);
    }
  }
  if ((header.flags & kWantsAck) != 0) acknowledge(from, header);

  const bool multiple = (posted.flags & FI_MULTI_RECV) != 0;
  Completion completion;
  completion.context = posted.context;
  completion.flags = FI_RECV | (kind == ReceiveQueue::kTagged ? FI_TAGGED : FI_MSG);
  completion.length = n;
  completion.buffer =
      posted.pieces > 0 ? static_cast<std::byte*>(posted.iov[0].iov_base) + posted.used : nullptr;
  if ((header.flags & kHasData) != 0) {
    completion.flags |= FI_REMOTE_CQ_DATA;
    completion.data = header.data;
  }
  completion.tag = header.tag;
  const bool wants_completion = posted.deferred
                                    ? (posted.flags & FI_COMPLETION) != 0 && endpoint.receive_cq() != nullptr
                                    : endpoint.receives_complete(posted.flags);
  Counter* const counter = posted.deferred ? posted.counter : endpoint.counter(Endpoint::kReceives);
  posted.used += n;
  if (!multiple || posted.length - posted.used < posted.least) {
    if (multiple) completion.flags |= FI_MULTI_RECV;
    queue.posted(kind).remove(posted);
    queue.free_posted(posted);
  }
  if (endpoint.tells_source()) completion.source = address_of(from);
  Cq* cq = endpoint.receive_cq();
  if (err != 0 || n < size) [[unlikely]] {
    if (counter != nullptr) counter->count_error();
    if (cq != nullptr) cq->write_error(completion, err != 0 ? err : FI_ETRUNC, size - n);
    return;
  }
  if (counter != nullptr) counter->count();
  if (!wants_completion) return;
  if (endpoint.tells_unknown_source() && completion.source == FI_ADDR_NOTAVAIL) {
    cq->write_error(completion, FI_EADDRNOTAVAIL, 0, &from.raw.storage, from.raw.length);
    return;
  }
  cq->write(completion);
}

void post_receive(ReceiveQueue& queue, ReceiveQueue::Kind kind, Posted& posted) {
  queue.posted(kind).push_back(posted);
  if (queue.unexpected(kind).empty()) [[likely]]
    return;
  const Peer* from = posted.from;
  const std::uint64_t tag = posted.tag, ignore = posted.ignore;
  while (Unexpected* message = queue.find(kind, from, tag, ignore)) {
    queue.unexpected(kind).remove(*message);
    message->to->port().deliver(*message, posted, queue, kind);
    // One that has got its message, or is used up, is not the last of the list any more.
    if (queue.posted(kind).last() != &posted) return;
  }
}

void Port::deliver(Unexpected& message, Posted& posted, ReceiveQueue& queue, ReceiveQueue::Kind kind) {
  complete_receive(*message.to, *message.from, message.header, message.size, message.bytes(),
                   message.offered ? &message.aside : nullptr, posted, queue, kind);
  Unexpected::destroy(&message);
}

void Port::discard(Unexpected& message) {
  if (message.offered) messages_->finish(message.aside);
  if ((message.header.flags & kWantsAck) != 0) acknowledge(*message.from, message.header);
  Unexpected::destroy(&message);
}

void Port::arrived_answer(Peer& peer, const WireHeader& header, std::span<const std::byte> bytes) {
  if (header.id >= operations_.size()) return;
  Operation& operation = *operations_[header.id];
  if (!operation.live || !operation.waits_for_answer || operation.peer != &peer) return;
  if (header.op != operation.answer) return;
  if (header.op == Op::kGetReply) {
    if (bytes.size() != operation.results[0].iov_len) return;
    if (operation.owner != nullptr) std::memcpy(operation.results[0].iov_base, bytes.data(), bytes.size());
  } else if (header.op == Op::kAtomicReply) {
    AtomicReply reply;
    if (!take_front(bytes, &reply)) return;
    if (reply.err == 0 && operation.owner != nullptr) {
      for_each_piece(operation.results, operation.result_count, header.tag, bytes.size(),
                     [&](std::span<std::byte> piece, std::size_t at) {
                       std::memcpy(piece.data(), bytes.data() + at, piece.size());
                     });
    }
    if ((header.flags & kMore) != 0) return;
    if (peer.atomics > 0) --peer.atomics;
    operation.err = reply.err;
  }
  operation.waits_for_answer = false;
  settle(operation);
}

void Port::arrived_atomic(Peer& peer, const WireHeader& header, std::span<const std::byte> bytes) {
  AtomicRequest request;
  if (!take_front(bytes, &request)) return;
  struct {
    WireHeader header{.op = Op::kAtomicReply};
    AtomicReply reply;
    std::byte results[kShortAtomicBytes];
  } message;
  message.header.id = header.id;
  const auto type = static_cast<fi_datatype>(request.type);
  const auto op = static_cast<fi_op>(request.op);
  const auto kind = static_cast<AtomicKind>(request.kind);
  const std::size_t size = atomic_size(type);
  std::size_t result_bytes = 0;
  if (size == 0 || request.kind > static_cast<std::uint8_t>(AtomicKind::kCompare) ||
      !atomic_valid(type, op, kind) || request.count > kShortAtomicBytes / size ||
      bytes.size() != request.count * size * atomic_operands(op, kind)) {
    message.reply.err = FI_EINVAL;
  } else {
    const std::size_t length = request.count * size;
    MemoryRegion* region = domain_.find_region(header.tag);
    const bool fetches = kind != AtomicKind::kWrite;
    message.reply.err = region == nullptr ? FI_ENOKEY
                                          : apply_atomic(*region, request.address, type, op, kind,
                                                         bytes.data(), bytes.data() + length,
                                                         fetches ? message.results : nullptr, request.count);
    if (message.reply.err == 0) {
      if (fetches) result_bytes = length;
      const std::uint64_t what = op == FI_ATOMIC_READ ? FI_REMOTE_READ : FI_REMOTE_WRITE;
      region->note_access(what);
      Endpoint* endpoint = header.context < endpoints_.size() ? endpoints_[header.context] : nullptr;
      if (endpoint != nullptr) endpoint->note_access(what);
    }
  }
  answer(peer, &message, offsetof(decltype(message), results) + result_bytes);
}

}  // namespace clan::ofi

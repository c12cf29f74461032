// Transport's peers: how they are found, connected to and heard of, and what becomes of those that go.
#include <clan/clock.h>

#include <algorithm>
#include <cstring>

#include "domain.h"
#include "endpoint.h"
#include "transport/transport.h"

namespace clan::ofi {
namespace {

constexpr std::int64_t kConnectMs = 10'000;
// A first message waits for the peer's driver thread, under the lock: so not long, and not again for a while
// once that was in vain. It answers in microseconds unless it is stopped or the machine very busy.
constexpr std::int64_t kPatienceMs = 200;
constexpr std::uint64_t kImpatientNs = 1'000'000'000u;
constexpr std::size_t kMostStrangers = 16;  ///< who have introduced themselves, and not said why

}  // namespace

Peer& Transport::peer_named(const Name& name) {
  if (auto known = peers_.find(name); known != peers_.end()) return *known->second;
  // What we owe a peer must not fail for want of memory to remember that.
  if (crowded_.capacity() <= peers_.size()) crowded_.reserve(2 * peers_.size() + 8);
  auto peer = std::make_unique<Peer>();
  peer->name = name;
  return *peers_.try_emplace(name, std::move(peer)).first->second;
}

Peer* Transport::peer_slowly(fi_addr_t address) {
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

fi_addr_t Transport::find_address(Peer& peer) {
  peer.generation = av_generation();
  peer.address = av_ != nullptr ? av_->find(peer.name) : FI_ADDR_NOTAVAIL;
  return peer.address;
}

// Asks for a connection. Who connects introduces itself; `first`, if any, follows at once. The driver threads
// see to it that both get there, whether or not the program makes progress.
int Transport::begin_connect(Peer& peer, std::span<const std::byte> first) {
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

int Transport::ready_slowly(Peer& peer) {
  if (peer.barriers > 0) {
    progress();
    if (peer.barriers > 0) return -FI_EAGAIN;
  }
  return connected(peer);
}

int Transport::connected(Peer& peer) {
  if (peer.index != kNoPeer) return 0;
  return connects_ || peer.pending != kNoPeer ? connect(peer) : -FI_ENOTCONN;
}

void Transport::be_patient(Peer& peer) {
  if (monotonic_ns() < impatient_until_) return;
  auto s = messages_->await(peer.pending, kPatienceMs);
  if (!s && s.error().err == EAGAIN) impatient_until_ = monotonic_ns() + kImpatientNs;
}

int Transport::connect(Peer& peer) {
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
int Transport::accepted(Peer& peer) {
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

void Transport::send_by(Peer& peer, PeerIndex index) {
  peer.send_by(index);
  if (auto where = messages_->peer_address(index); where.ok()) {
    peer.node = where->node.value;
    peer.uid = where->uid;
  }
}

// A connection that it has yet to accept is not wanted any more.
void Transport::give_up(Peer& peer) {
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

void Transport::arrived_hello(PeerIndex from, std::span<const std::byte> bytes) {
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
Peer* Transport::asked_by(PeerIndex index) const {
  Peer* const asked = !endpoints_.empty() && endpoints_[0] != nullptr ? endpoints_[0]->asked() : nullptr;
  return asked != nullptr && (index == asked->pending || index == asked->index) ? asked : nullptr;
}

void Transport::turn_away(PeerIndex stranger) {
  std::erase_if(strangers_, [stranger](const Stranger& s) { return s.index == stranger; });
  messages_->disconnect(stranger);
}

// A message of who is no peer of ours, or not yet. A message endpoint has one peer, by the connection that it
// has made or been granted; nobody else is heard, by whatever name.
void Transport::arrived_from_stranger(PeerIndex from, const WireHeader& header,
                                      std::span<const std::byte> bytes) {
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
bool Transport::arrived_acceptance(PeerIndex from, const WireHeader& header,
                                   std::span<const std::byte> bytes) {
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

void Transport::departed(PeerIndex index, int reason) {
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

void Transport::abandon(Peer& peer, int err) {
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
void Transport::forget_peers() {
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

int Transport::introduce(const Name& to, const WireHeader& header, const void* data, std::size_t length,
                         bool hear, Peer** peer) {
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

void Transport::hang_up(Peer& peer) {
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

}  // namespace clan::ofi

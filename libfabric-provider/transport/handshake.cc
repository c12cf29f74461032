#include "transport/handshake.h"

#include <clan/detail/clock.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "objects/endpoint.h"
#include "system/other_hosts.h"
#include "wire/pieces.h"

namespace clan::ofi {
namespace {

constexpr std::int64_t kConnectMs = 10'000;
// A first message waits for the peer's driver thread, under the lock: so not long, and not again
// for a while once it did not answer. It answers in microseconds unless it is stopped or the
// machine very busy.
constexpr std::int64_t kAcceptPatienceMs = 200;
constexpr std::uint64_t kImpatientNs = 1'000'000'000u;

}  // namespace

SocketAddress introduced_as(std::span<const std::byte> bytes) {
  Hello hello;
  if (!take_front(bytes, &hello) || hello.version != kWireVersion ||
      hello.length > sizeof hello.address)
    return {};
  return read_address(&hello.address, hello.length);
}

bool gives_way(const Peer& peer, const Name& own) { return !peer.introduced && peer.name < own; }

bool Unverified::add(PeerIndex index, const SocketAddress& address) {
  if (entries_.size() >= kMost || find(index) != nullptr) return false;
  entries_.push_back({index, address});
  return true;
}

const SocketAddress* Unverified::find(PeerIndex index) const {
  const auto it = std::find_if(entries_.begin(), entries_.end(),
                               [index](const Entry& entry) { return entry.index == index; });
  return it == entries_.end() ? nullptr : &it->address;
}

void Unverified::remove(PeerIndex index) {
  std::erase_if(entries_, [index](const Entry& entry) { return entry.index == index; });
}

// --- connections that we ask for -----------------------------------------------------------------

int Handshake::begin(Peer& peer, std::span<const std::byte> first) {
  if (!peer.name.local() && !reaches_other_hosts()) {
    say_what_is_missing(peer.name);
    return -FI_EHOSTUNREACH;
  }
  const SocketAddress own = shown_to(channel_.address, peer.name);
  struct {
    WireHeader header{.op = Op::kHello};
    Hello hello;
  } greeting;
  greeting.hello.length = own.length;
  std::memcpy(&greeting.hello.address, &own.storage, own.length);
  const std::span<const std::byte> greetings[] = {bytes_of(greeting), first};
  auto index = channel_.messages->begin_connect(
      service_at(peer.name), std::span(greetings).first(first.empty() ? 1 : 2), kConnectMs);
  if (!index) {
    FI_INFO(&g_provider, FI_LOG_EP_CTRL, "port %u: %s\n", peer.name.port,
            index.error().message().c_str());
    return failure(index.error());
  }
  try {
    peers_.remember(*index, peer);
  } catch (const std::bad_alloc&) {
    channel_.messages->disconnect(*index);
    throw;
  }
  peer.pending = *index;
  peer.introduced = !first.empty();
  return 0;
}

void Handshake::wait_briefly(Peer& peer) {
  if (monotonic_ns() < impatient_until_) return;
  auto s = channel_.messages->await(peer.pending, kAcceptPatienceMs);
  if (!s && s.error().err == EAGAIN) impatient_until_ = monotonic_ns() + kImpatientNs;
}

void Handshake::use(Peer& peer, PeerIndex index) {
  peer.send_by(index);
  if (auto where = channel_.messages->peer_address(index); where.ok()) {
    peer.node = where->node.value;
    peer.uid = where->uid;
  }
}

void Handshake::drop_connection(PeerIndex index) {
  peers_.forget_connection(index);
  channel_.messages->disconnect(index);
}

void Handshake::give_up(Peer& peer) {
  if (peer.pending != kNoPeer) drop_connection(std::exchange(peer.pending, kNoPeer));
}

// --- those that ask us ---------------------------------------------------------------------------

Handshake::Outcome Handshake::arrived_hello(PeerIndex from, std::span<const std::byte> bytes) {
  const SocketAddress address = introduced_as(bytes);
  Name name;
  bool welcome = address.valid() && name_peer(address, channel_.messages->is_far(from), &name);
  if (welcome && name == name_of(channel_.address)) {
    auto node = channel_.messages->peer_address(from);
    // the name is ours alone
    welcome = node && node->node == channel_.messages->address().node;
  }
  channel_.messages->drop();
  if (!welcome) {
    FI_WARN(&g_provider, FI_LOG_EP_CTRL,
            "a peer was refused that speaks another version, or has a name that cannot be its\n");
    channel_.messages->disconnect(from);
    return {};
  }
  Peer& peer = peers_.named(name);
  // As both ends see it: of two hosts, each takes its own for local.
  const SocketAddress shown = shown_to(channel_.address, name);
  const Name own = name.local() ? name_of(shown) : outer_name_of(shown);
  peer.raw = address;
  peers_.remember(from, peer);
  if (peer.index != kNoPeer) return {};
  if (peer.pending != kNoPeer && !gives_way(peer, own)) return {};
  give_up(peer);
  use(peer, from);
  return {.flush = &peer};
}

Peer* Handshake::asked_by(const Endpoint* endpoint, PeerIndex index) {
  Peer* const asked = endpoint != nullptr ? endpoint->asked() : nullptr;
  return asked != nullptr && (index == asked->pending || index == asked->index) ? asked : nullptr;
}

void Handshake::turn_away(PeerIndex stranger) {
  unverified_.remove(stranger);
  channel_.messages->disconnect(stranger);
}

Handshake::Outcome Handshake::arrived(PeerIndex from, const WireHeader& header,
                                      std::span<const std::byte> bytes, Endpoint* endpoint) {
  if (connects_) {
    if (header.op == Op::kHello) return arrived_hello(from, bytes);
    channel_.messages->drop();
    return {};
  }
  const bool waits = endpoint != nullptr && endpoint->asked() != nullptr;
  const bool from_asked = waits && asked_by(endpoint, from) != nullptr;
  if (from_asked && header.op == Op::kReject) {
    if (Peer* leaves = endpoint->answered(nullptr, header, bytes); leaves != nullptr) {
      channel_.messages->drop();
      return {.hang_up = leaves};
    }
  }
  if (waits && !from_asked && header.op == Op::kAccept) {
    if (auto outcome = arrived_acceptance(from, header, bytes, *endpoint)) return *outcome;
  }
  if (waits && !from_asked && header.op == Op::kHello && arrived_introduction(from, bytes))
    return {};
  channel_.messages->drop();
  ++turned_away_;
  if (!from_asked) turn_away(from);
  return {};
}

bool Handshake::arrived_introduction(PeerIndex from, std::span<const std::byte> bytes) {
  const SocketAddress address = introduced_as(bytes);
  Name name;
  if (!address.valid() || !name_peer(address, channel_.messages->is_far(from), &name)) return false;
  if (!unverified_.add(from, address)) return false;
  channel_.messages->drop();
  return true;
}

// Nothing: it is not the connection that the endpoint waits for.
std::optional<Handshake::Outcome> Handshake::arrived_acceptance(PeerIndex from,
                                                                const WireHeader& header,
                                                                std::span<const std::byte> bytes,
                                                                Endpoint& endpoint) {
  const SocketAddress* const found = unverified_.find(from);
  if (found == nullptr || !endpoint.waits_for(header.tag)) return std::nullopt;
  const SocketAddress address = *found;
  Name name;
  if (!name_peer(address, channel_.messages->is_far(from), &name)) return std::nullopt;
  if (name == endpoint.asked()->name) return std::nullopt;
  Peer& peer = peers_.named(name);
  Peer* const leaves = endpoint.answered(&peer, header, bytes);
  channel_.messages->drop();
  peer.raw = address;
  unverified_.remove(from);
  peers_.remember(from, peer);
  use(peer, from);
  while (!unverified_.empty()) turn_away(unverified_.last());
  return Outcome{.hang_up = leaves};
}

}  // namespace clan::ofi

#include "links.h"

#include <clan/detail/clock.h>
#include <clan/detail/log.h>
#include <clan/detail/words.h>

#include <algorithm>
#include <cstdio>

#include "page.h"

namespace clan::ip {
namespace {

/// The limit of the last step of an opening, which no time-out of the engine ends: the peer's
/// Hello.
constexpr std::uint64_t kOpeningNs = 10'000'000'000;

}  // namespace

Status Links::start(unsigned offloads) {
  offloads_ = offloads;
  for (const Prefix& own : options_.addresses) {
    auto endpoint = MessageEndpoint::create(context_, service_of(own.address, "", directory_));
    if (!endpoint) return endpoint.error();
    if (auto bound = endpoint->register_with(events_, faces_.size()); !bound) return bound;
    faces_.push_back(std::make_unique<Face>(Face{own, std::move(*endpoint), {}}));
  }
  for (const PeerOption& option : options_.peers) {
    const Address& address = option.prefixes[0].address;
    if (peers_.size() == IpPage::kRows) return Error{E2BIG, "at most 255 peers"};
    put(make(option, *face_for(address.v6, &address)), peers_.size());
  }
  return {};
}

Face* Links::face_for(bool v6, const Address* inside) {
  Face* first = nullptr;
  for (auto& face : faces_) {
    if (face->own.address.v6 != v6) continue;
    if (inside != nullptr && face->own.contains(*inside)) return face.get();
    if (first == nullptr) first = face.get();
  }
  return first;
}

std::unique_ptr<Peer> Links::make(const PeerOption& option, Face& face) const {
  auto peer = std::make_unique<Peer>();
  peer->prefixes = option.prefixes;
  peer->service = service_of(option.prefixes[0].address, option.host, directory_);
  peer->face = &face;
  peer->takes = offloads_;
  return peer;
}

// The place of a new peer: a free one, or that of a peer which no option names and which has gone.
std::optional<std::size_t> Links::place() const {
  if (peers_.size() < IpPage::kRows) return peers_.size();
  for (std::size_t i = options_.peers.size(); i < peers_.size(); ++i) {
    if (peers_[i]->state == Peer::State::kDown && peers_[i]->waiting.empty()) return i;
  }
  return std::nullopt;
}

Peer* Links::put(std::unique_ptr<Peer> peer, std::size_t place) {
  IpRow& row = *(peer->row = &own_page().row[place]);
  std::snprintf(row.address, sizeof row.address, "%s",
                to_string(peer->prefixes[0].address).c_str());
  std::snprintf(row.service, sizeof row.service, "%s", peer->service.c_str());
  show(row.offloads, 0u);
  show(row.mtu, 0u);
  if (place == peers_.size()) {
    peers_.push_back(std::move(peer));
    words::store_release(own_page().rows, static_cast<std::uint32_t>(peers_.size()));
  } else {
    peer->queue = peers_[place]->queue;  // with packets to the old one, which are not lost
    peer->readable = peer->queue != 0;
    peers_[place] = std::move(peer);
  }
  ++changes_;
  return peers_[place].get();
}

Peer* Links::find(const Address& address) {
  Peer* found = nullptr;
  unsigned bits = 0;
  for (auto& peer : peers_) {
    for (const Prefix& prefix : peer->prefixes) {
      if (!prefix.contains(address) || (found != nullptr && prefix.bits <= bits)) continue;
      found = peer.get();
      bits = prefix.bits;
    }
  }
  return found;
}

Peer* Links::look_for(const Address& address) {
  if (Peer* const known = find(address)) return known;
  Face* const face = face_for(address.v6, &address);
  if (face == nullptr || !face->own.contains(address) || address == face->own.address)
    return nullptr;
  // Nothing of it is kept where nobody has the address.
  const auto free = place();
  auto peer = make({{{address, static_cast<unsigned>(address.size() * 8)}}, ""}, *face);
  return free && begin(*peer) ? put(std::move(peer), *free) : nullptr;
}

Peer* Links::of(const Face& face, PeerIndex from) {
  const auto found = face.by_in.find(from);
  return found == face.by_in.end() ? nullptr : found->second;
}

// --- connections to peers ------------------------------------------------------------------------

Hello Links::hello_to(const Peer& peer) const {
  Hello hello;
  hello.offloads = peer.takes;
  hello.mtu = options_.mtu;
  hello.v6 = peer.face->own.address.v6;
  std::copy(peer.face->own.address.bytes.begin(), peer.face->own.address.bytes.end(),
            hello.address);
  return hello;
}

bool Links::begin(Peer& peer) {
  const Hello hello = hello_to(peer);
  const auto bytes = std::as_bytes(std::span(&hello, 1));
  auto begun = peer.face->endpoint.begin_connect(peer.service, std::span(&bytes, 1));
  if (!begun) {
    CLAN_INFO("%s: %s", peer.service.c_str(), begun.error().message().c_str());
    return false;
  }
  peer.out = *begun;
  peer.fresh = peer.in.has_value();
  peer.state = Peer::State::kOpening;
  peer.since_ns = monotonic_ns();
  return true;
}

void Links::open(Peer& peer) {
  if (!begin(peer)) close(peer, true);
}

void Links::close(Peer& peer, bool failed) {
  if (peer.state == Peer::State::kUp) CLAN_INFO("%s is gone", peer.row->address);
  if (peer.out) peer.face->endpoint.disconnect(*std::exchange(peer.out, std::nullopt));
  drop_in(peer);
  peer.state = Peer::State::kDown;
  peer.failed = failed;
  show(peer.row->up, 0u);
}

void Links::refuse_offload(Peer& peer, unsigned offload) {
  peer.takes &= ~offload;
  say_hello(peer);  // where there is no room the next packet that is refused says it again
}

void Links::say_hello(Peer& peer) {
  const Hello hello = hello_to(peer);
  (void)peer.face->endpoint.try_send(*peer.out, std::as_bytes(std::span(&hello, 1)), {});
}

// --- connections of peers ------------------------------------------------------------------------

void Links::drop_in(Peer& peer) {
  if (!peer.in) return;
  peer.face->by_in.erase(*peer.in);
  if (std::exchange(peer.held, false)) peer.face->endpoint.resume(*peer.in);
  if (peer.claim) peer.face->endpoint.resume(*std::exchange(peer.claim, std::nullopt));
  peer.face->endpoint.disconnect(*std::exchange(peer.in, std::nullopt));
}

bool Links::hold(Peer& peer) {
  if (peer.state == Peer::State::kUp) return false;
  peer.face->endpoint.hold();
  peer.held = true;
  return true;
}

void Links::end_stranger(Face& face, PeerIndex from) {
  count(own_page().strangers);
  if (Peer* const peer = of(face, from)) return close(*peer, false);
  face.endpoint.disconnect(from);
}

// The peer that says it has the address: one of those known by it, or a new one of this host.
Peer* Links::claimed(Face& face, PeerIndex from, const Address& address) {
  for (auto& peer : peers_) {
    if (peer->face == &face && peer->prefixes[0].address == address) return peer.get();
  }
  const bool near = !face.endpoint.is_far(from) && face.own.contains(address);
  Peer* const found = near ? look_for(address) : nullptr;
  return found != nullptr && found->prefixes[0].address == address ? found : nullptr;
}

bool Links::same(Peer& peer, PeerIndex other) {
  const MessageEndpoint& endpoint = peer.face->endpoint;
  const auto there = endpoint.peer_address(*peer.out), here = endpoint.peer_address(other);
  return there && here && there->node == here->node && there->endpoint == here->endpoint;
}

bool Links::waits(Face& face, PeerIndex from, const Hello& hello) {
  if (of(face, from) != nullptr) return false;
  for (auto& peer : peers_) {
    if (peer->face != &face || peer->prefixes[0].address != hello.from()) continue;
    if (!peer->in || (peer->out && same(*peer, from))) return false;
    face.endpoint.hold();
    if (const auto before = std::exchange(peer->claim, from)) {
      face.endpoint.resume(*before);
      face.endpoint.disconnect(*before);
    }
    if (peer->out) say_hello(*peer);  // another host answers it, or the peer is known to have gone
    count(own_page().strangers);
    return true;
  }
  return false;
}

bool Links::greet(Face& face, PeerIndex from, const Hello& hello) {
  if (Peer* const known = of(face, from)) {  // it takes fewer offloads now
    if (known->hello.from() != hello.from()) return false;
    known->hello = hello;
    show(known->row->offloads, hello.offloads);
    return true;
  }
  Peer* const peer = claimed(face, from, hello.from());
  if (peer == nullptr) {
    CLAN_WARN("%s connects, and no --peer says where it is", to_string(hello.from()).c_str());
    return false;
  }
  drop_in(*peer);
  peer->in = from;
  peer->hello = hello;
  peer->fresh = false;
  face.by_in[from] = peer;
  peer->since_ns = monotonic_ns();
  if (peer->state == Peer::State::kUp) peer->state = Peer::State::kOpening;
  if (!peer->out) open(*peer);
  return true;
}

// Is the process that says so also the one found there? Where not, that may have died since: it is
// looked for once more.
void Links::verify(Peer& peer) {
  if (peer.state != Peer::State::kOpening || !peer.in || !peer.out) return;
  MessageEndpoint& endpoint = peer.face->endpoint;
  const auto there = endpoint.peer_address(*peer.out), here = endpoint.peer_address(*peer.in);
  if (!there || !here) return;
  if (same(peer, *peer.in)) {
    peer.state = Peer::State::kUp;
    peer.failed = false;
    show(peer.row->up, 1u);
    show(peer.row->offloads, peer.hello.offloads);
    show(peer.row->mtu, peer.hello.mtu);
    if (std::exchange(peer.held, false)) endpoint.resume(*peer.in);
    CLAN_INFO("%s is up, at %s", peer.row->address, peer.row->service);
  } else if (peer.fresh) {
    CLAN_WARN("a process says that it is %s, which is another one at %s", peer.row->address,
              peer.row->service);
    count(own_page().strangers);
    drop_in(peer);
  } else {
    endpoint.disconnect(*std::exchange(peer.out, std::nullopt));
    open(peer);
  }
}

void Links::take_departed(Face& face) {
  PeerIndex gone = 0;
  int reason = 0;
  while (face.endpoint.take_departed(&gone, &reason)) {
    bool known = false;
    for (auto& peer : peers_) {
      if (peer->face != &face || (peer->out != gone && peer->in != gone)) continue;
      known = true;
      const bool failed = peer->state == Peer::State::kOpening && peer->out == gone;
      CLAN_INFO("%s at %s: %s", peer->row->address, peer->row->service,
                std::strerror(reason != 0 ? reason : EPIPE));
      close(*peer, failed);
    }
    if (!known) face.endpoint.disconnect(gone);  // it never said which peer it was
  }
}

void Links::look(std::uint64_t now_ns) {
  for (auto& face : faces_) take_departed(*face);
  for (auto& peer : peers_) {
    if (peer->state != Peer::State::kOpening) continue;
    verify(*peer);
    if (peer->state != Peer::State::kOpening || now_ns - peer->since_ns < kOpeningNs) continue;
    CLAN_WARN("%s at %s does not answer: has it a --peer for this end?", peer->row->address,
              peer->row->service);
    close(*peer, true);
  }
}

bool Links::opening() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const auto& peer) { return peer->state == Peer::State::kOpening; });
}

unsigned Links::common_offloads() const {
  unsigned all = offloads_;
  for (const auto& peer : peers_) {
    if (peer->state == Peer::State::kUp) all &= peer->hello.offloads | kCsum;
  }
  return all;
}

}  // namespace clan::ip

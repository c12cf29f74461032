// Message endpoints: messages in the peer's ring, offers of large ones, and fragments otherwise.
#include <algorithm>

#include "clan/detail/dekker.h"
#include "engine/message/message_endpoint.h"

namespace clan::engine {
namespace {

constexpr std::uint64_t kNoCookie = ~std::uint64_t{0};  ///< a send() that waits for its own offer
/// of a large message and the answer to it; and 1 ns a byte
constexpr std::uint64_t kLeastCopyNs = 200'000;
constexpr std::size_t kMostAwaitedBytes = 20'000'000;
constexpr std::uint64_t kPacketsPiece = 112 * 1024;  ///< a fragment in packets: two trains

}  // namespace

Status MessageEndpointCore::send_error(const Peer& peer) const {
  if (!context_->usable()) return unusable_error();
  int reason = peer.connection->reset_reason();
  return Error{reason != 0 ? reason : EPIPE, "the peer is gone"};
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

Status MessageEndpointCore::try_send(PeerIndex to, std::span<const std::byte> header,
                                     std::span<const std::byte> message) {
  Peer* peer = find(to);
  if (peer == nullptr) [[unlikely]]
    return no_peer(to);
  Connection& c = *peer->connection;
  const std::size_t total = header.size() + message.size();
  if (c.peer_gone() || !peer->fragmenting.empty() || total > c.max_payload()) [[unlikely]] {
    if (auto room = reserve(to, total); !room) return room.error();
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
  if (header.size() > kMaxMessageHeader)
    return Error{EINVAL, "a header longer than kMaxMessageHeader"};
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
  // With 64 offers open, send fragments: the peer may not have decided about the others yet.
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
  if (std::find(sending_.begin(), sending_.end(), &peer) == sending_.end())
    sending_.push_back(&peer);
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
  nic::Nic& nic = peer.connection->nic();
  if (context_->usable()) {
    if (status != ECANCELED) {
      nic.retire(o.cookie.aperture);
    } else {  // its memory is about to be reused: no copy may be under way
      (void)context_->links().revoke(nic, o.cookie.aperture);
    }
  }
  o.open = false;
  peer.open_offers &= ~(std::uint64_t{1} << slot);
  report_sent(peer, o.user_cookie, status);
}

// Ends all that is on its way to the peer. What the peer sent can still be received.
void MessageEndpointCore::end_sends(Peer& peer, int status) {
  for (std::uint32_t slot = 0; slot < peer.offers.size(); ++slot) {
    if (peer.offers[slot].open) finish_offer(peer, slot, status);
  }
  for (const Offer& o : peer.fragmenting) report_sent(peer, o.user_cookie, status);
  peer.fragmenting.clear();
  std::erase(sending_, &peer);
}

// Answers to our offers. True when something moved.
bool MessageEndpointCore::progress_offers(Peer& peer) {
  bool moved = false;
  for (int word = 0; word < 2; ++word) {
    auto& answers = peer.connection->own_offer_word(word);
    if (answers.load(std::memory_order_relaxed) == 0) continue;  // relaxed: the exchange acquires
    // PAIR offer.answer: the peer's copy of the message is complete
    std::uint64_t bits = dekker::swap(answers, 0) & peer.open_offers;
    while (bits != 0) {
      const auto slot = static_cast<std::uint32_t>(__builtin_ctzll(bits));
      bits &= bits - 1;
      moved = true;
      // Word 1: not copied, though the peer can copy from us: the memory is not readable.
      finish_offer(peer, slot, word == 0 ? 0 : EFAULT);
    }
  }
  return moved;
}

bool MessageEndpointCore::progress_fragments(Peer& peer) {
  bool moved = false;
  Connection& c = *peer.connection;
  const std::size_t most = std::min(c.max_payload(), c.mapped() ? shm::kRingPiece : kPacketsPiece);
  while (!peer.fragmenting.empty() && !c.peer_gone()) {
    Offer& o = peer.fragmenting.front();
    const std::size_t n = std::min(most, o.total() - peer.fragment_sent);
    // The first fragment has room for the whole header.
    const std::size_t head = peer.fragment_sent == 0 ? o.header_bytes : 0;
    const std::size_t from = peer.fragment_sent + head - o.header_bytes;
    const bool last = peer.fragment_sent + n == o.total();
    if (!c.append({o.header.data(), head}, o.message.subspan(from, n - head),
                  last ? RecordType::kLastFragment : RecordType::kFragment)) {
      break;
    }
    peer.fragment_sent += n;
    moved = true;
    if (!last) continue;
    report_sent(peer, o.user_cookie, 0);
    peer.fragmenting.pop_front();
    peer.fragment_sent = 0;
  }
  return moved;
}

bool MessageEndpointCore::progress_sends(Fetch fetch) {
  bool moved = fetch == Fetch::kYes ? context_->help() : context_->help_fetched();
  for (std::size_t i = 0; i < sending_.size();) {
    Peer& peer = *sending_[i];
    if (peer.open_offers != 0) moved = progress_offers(peer) || moved;
    if (!peer.fragmenting.empty()) moved = progress_fragments(peer) || moved;
    const bool done = peer.open_offers == 0 && peer.fragmenting.empty();
    if (done) {
      sending_.erase(sending_.begin() + static_cast<std::ptrdiff_t>(i));
    } else if (peer.connection->peer_gone()) {
      end_sends(peer, ECONNRESET);  // takes it off the list
      moved = true;
    } else {
      ++i;
    }
  }
  return moved;
}

Status MessageEndpointCore::send(PeerIndex to, std::span<const std::byte> message,
                                 std::uint64_t deadline_ns) {
  if (auto s = await(to, deadline_ns); !s) [[unlikely]] {
    return s.error().err == EAGAIN ? Error{ETIMEDOUT, "the peer has not accepted in time"}
                                   : s.error();
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
  if (blocking_open_ && c.peer_gone()) end_sends(*peer, ECONNRESET);
  if (!blocking_open_) {
    if (blocking_status_ == ECONNRESET) return send_error(*peer);
    if (blocking_status_ != 0)
      return Error{blocking_status_, "the peer could not read the message"};
    return {};
  }
  for (std::uint32_t slot = 0; slot < peer->offers.size(); ++slot) {
    if (peer->offers[slot].open && peer->offers[slot].user_cookie == kNoCookie)
      finish_offer(*peer, slot, ECANCELED);
  }
  // Fragments that have gone cannot be called back: the connection is of no further use.
  if (blocking_open_) disconnect(to);
  return s;
}

}  // namespace clan::engine

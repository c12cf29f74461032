// Message endpoints: the next message of any peer; hot rings are polled, cold ones post events.
#include <algorithm>

#include "engine/message/message_endpoint.h"

namespace clan::engine {
namespace {

constexpr unsigned kColdEvery = 32;  ///< polls of hot rings between polls of cold ones

}  // namespace

// Is there a message of this peer? Fills front_.
[[gnu::always_inline]] inline bool MessageEndpointCore::look_at(Peer& peer) {
  if (peer.held != Peer::Held::kNo) [[unlikely]]
    return show_held(peer);
  // In place: a copy would stall on store forwarding.
  const int rc = peer.connection->peek(&front_.record);
  return (rc > 0 && front_.is_message(peer)) || look_closely(peer, rc);
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
    if (front_.is_message(peer)) return true;
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
        const bool last =
            record.head.type() == static_cast<std::uint8_t>(RecordType::kLastFragment);
        c.consume(record);
        if (!last) continue;
        f.assembled = peer.assembled = true;
        f.size = peer.assembly.size();
        front_ = f;
        return true;
      }
      default: break;
    }
    c.reset_hostile("a record that is not a message's");
    depart(peer);
    return false;
  }
}

bool MessageEndpointCore::find_front(Fetch fetch) {
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
  // What comes in packets for a cold peer; its look fetches for a hot one.
  if (fetch == Fetch::kYes) context_->packets().fetch();
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

Result<IncomingMessage> MessageEndpointCore::peek(Fetch fetch) {
  if (!context_->usable()) return unusable_error();
  if (!find_front(fetch)) {
    progress_sends(Fetch::kNo);
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
  nic::Transfer t{RdmaOp::kRead,
                  &*handle,
                  offset,
                  buffer.data(),
                  std::min<std::uint64_t>(buffer.size(), cookie.length - offset),
                  0};
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
  if (front_.peer == nullptr)
    return Error{EINVAL, "take() without a message that peek() has shown"};
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

Result<MessageInfo> MessageEndpointCore::try_recv(std::span<std::byte> buffer) {
  while (find_front()) {
    // A message that its sender took back is no reason to say that there is none.
    auto m = take(buffer);
    if (m.ok() || m.error().err != EAGAIN) return m;
  }
  if (!context_->usable()) return unusable_error();
  progress_sends(Fetch::kNo);
  return Error{EAGAIN, "no message"};
}

}  // namespace clan::engine

namespace clan {

bool MessageEndpoint::quiet() const {
  const engine::MessageEndpointCore& core = *core_;
  core.context_->packets().fetch();
  if (core.hot_pending() || !core.sending_.empty() || core.something_told()) return false;
  // relaxed: a glance; adopt() acquires
  return !core.any_accepted_.load(std::memory_order_relaxed) && !core.arrivals_->pending() &&
         !core.context_->wants_help();
}

Result<SetAside> MessageEndpoint::set_aside() {
  engine::MessageFront& front = core_->front_;
  if (front.peer == nullptr || !front.offered) {
    return Error{EINVAL, "set_aside() without an offered message that peek() has shown"};
  }
  const engine::MessageFront f = std::exchange(front, {});
  f.peer->connection->consume(f.record);
  return SetAside{f.peer->index, f.offer.slot, f.offer.cookie};
}

Status MessageEndpoint::copy(const SetAside& message, std::uint64_t offset,
                             std::span<std::byte> buffer) {
  if (!core_->context_->usable()) return engine::unusable_error();
  auto* peer = core_->find(message.from);
  if (peer == nullptr) return Error{ECONNRESET, "the sender of a message set aside is gone"};
  if (offset > message.size() || buffer.size() > message.size() - offset) {
    return Error{ERANGE, "beyond the end of a message set aside"};
  }
  if (buffer.empty()) return {};
  const int err = core_->copy_offer(*peer, message.cookie, offset, buffer);
  if (err == 0) return {};
  if (err == ECONNRESET || peer->connection->peer_gone()) {
    return Error{ECONNRESET, "the sender of a message set aside is gone"};
  }
  if (err == ESTALE) return Error{ESTALE, "the sender took its message back"};
  return Error{EFAULT, "the sender offered memory that cannot be read"};
}

void MessageEndpoint::finish(const SetAside& message, bool received) {
  const auto* peer = core_->find(message.from);
  if (peer == nullptr || peer->connection->peer_gone() || !core_->context_->usable()) return;
  peer->connection->answer_offer(received ? 0 : 1, message.slot);
}

}  // namespace clan

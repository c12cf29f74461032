// UdpLink: what the peer sends. All of it under the node's mutex, and all of it input.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "clan/detail/clock.h"
#include "clan/detail/words.h"
#include "link/udp/node/udp_link.h"
#include "link/udp/node/udp_node.h"
#include "nic/tripwire_match.h"

namespace clan::udp {
namespace {

constexpr std::size_t kMostIncoming = 4 * UdpLink::kMostTransfers;
constexpr std::uint64_t kMostReplyBytes = 32 << 20;
constexpr std::uint64_t kMostAnswers = 16 << 20;  ///< positions of channel 0 that wait to be sent
constexpr std::size_t kMostOobWaiting = 16'384;
constexpr std::size_t kShortReply = 1024;  ///< shorter answers go with the urgent messages
/// in a token: a reply that was charged with so many bytes
constexpr std::uint64_t kReply = std::uint64_t{1} << 63;
constexpr std::size_t kWord = sizeof(std::uint64_t);

bool is_word(const std::byte* p, std::size_t bytes) {
  return bytes == kWord && reinterpret_cast<std::uintptr_t>(p) % kWord == 0;
}

// Consumers poll the first word: its store publishes the rest, and all that was placed before.
void copy_in(std::byte* to, std::span<const std::byte> from) {
  if (from.size() < kWord || reinterpret_cast<std::uintptr_t>(to) % kWord != 0) {
    std::memcpy(to, from.data(), from.size());
    return;
  }
  std::uint64_t word;
  std::memcpy(&word, from.data(), sizeof word);
  std::memcpy(to + kWord, from.data() + kWord, from.size() - kWord);
  // PAIR ring.head, ring.credit, aperture.publish: over packets, the link is the one that stores
  words::store_release(std::atomic_ref(*reinterpret_cast<std::uint64_t*>(to)), word);
}

}  // namespace

// The peer broke the protocol; said once, as what it sends until the end is still processed.
void UdpLink::misbehaved() {
  if (connection_ == nullptr || connection_->state() != Connection::State::kEstablished) return;
  if (!detached_)
    node_->tell([link = shared_from_this()](auto& sink) { sink.on_misbehaviour(link); });
  node_->endpoint_.close(*connection_, EPROTO, monotonic_ns());
}

// A peer that asks on and on, and gives no credit for answers, must not fill our memory with them.
void UdpLink::send_answer(const LinkHeader& h) {
  if (connection_ != nullptr && connection_->queued_bytes(kUrgent) > kMostAnswers) {
    misbehaved();
  } else {
    send(kUrgent, h);
  }
}

nic::Nic::Landing UdpLink::land(const LinkHeader& h, std::uint64_t offset, std::uint64_t length,
                                Rights right, int* err) const {
  nic::Nic& nic = *node_->owner_.nic;
  auto landing = nic.resolve(h.aperture, h.generation, offset, length, right);
  *err = 0;
  if (!landing) {
    *err = ESTALE;
    return landing;
  }
  // relaxed: resolve() has checked this aperture under the Nic's mutex
  const auto key =
      nic.image().tables->apertures[h.aperture].key_image.load(std::memory_order_relaxed);
  if (key == h.key_image) return landing;
  *err = EACCES;
  return {};
}

// Copies to [offset, ...) of the aperture but for what is in `taken`.
int UdpLink::place(const LinkHeader& h, std::uint64_t offset, std::span<const std::byte> bytes,
                   const RangeSet& taken) {
  int err = 0;
  auto landing = land(h, offset, bytes.size(), Rights::kWrite, &err);
  if (err != 0) return err;
  taken.for_each_missing(offset, offset + bytes.size(), [&](std::uint64_t from, std::uint64_t to) {
    copy_in(landing.get() + (from - offset), bytes.subspan(from - offset, to - from));
  });
  return 0;
}

// --- RDMA ----------------------------------------------------------------------------------------

UdpLink::Incoming* UdpLink::incoming(const LinkHeader& h) {
  auto at = incoming_.end();
  while (at != incoming_.begin() && std::prev(at)->header.request > h.request) --at;
  if (at != incoming_.begin() && std::prev(at)->header.request == h.request) return &*std::prev(at);
  if (incoming_.size() >= kMostIncoming) return nullptr;
  return &*incoming_.insert(at, Incoming{h, {}, 0});
}

// What the chunk has placed in the aperture that `h` names.
void UdpLink::add_placed(const Incoming& chunk, const LinkHeader& h, RangeSet* to) {
  if (chunk.header.aperture != h.aperture || chunk.header.generation != h.generation) return;
  for (std::size_t i = 0; i < chunk.placed.size(); ++i)
    to->add(chunk.placed[i].begin, chunk.placed[i].end);
}

// A piece of a chunk, in any order: what chunks sent later have placed already stays.
void UdpLink::place_bulk(const LinkHeader& h, std::uint64_t offset,
                         std::span<const std::byte> bytes) {
  Incoming* chunk = incoming(h);
  if (chunk == nullptr || offset + bytes.size() < offset) return misbehaved();
  if (chunk->err != 0 || bytes.empty()) return;
  RangeSet later;
  for (auto it = incoming_.rbegin(); it != incoming_.rend() && it->header.request > h.request;
       ++it) {
    add_placed(*it, h, &later);
  }
  chunk->err = place(h, offset, bytes, later);
  if (chunk->err == 0) chunk->placed.add(offset, offset + bytes.size());
}

void UdpLink::finish_write(const LinkHeader& h) {
  Incoming* chunk = incoming(h);
  if (chunk == nullptr) return misbehaved();
  int err = chunk->err;
  const std::uint64_t begin = h.offset;
  const std::uint64_t length = chunk->placed.empty() ? 0 : chunk->placed.back().end - begin;
  incoming_.erase(incoming_.begin() + (chunk - &incoming_.front()));
  // Still there? Then all of it has found the aperture there.
  if (err == 0) (void)land(h, begin, length, Rights::kWrite, &err);
  if (err == 0 && length > 0) {
    nic::match_for_packets(node_->owner_.nic->image(), h.aperture, begin, length,
                           nic::AccessKind::kWrite);
  }
  send_answer({.type = LinkMessageType::kWriteDone,
               .err = static_cast<std::uint32_t>(err),
               .request = h.request});
}

void UdpLink::run_bulk() {
  while (!bulk_waiting_.empty() && bulk_waiting_.front().after <= urgent_released_) {
    const LinkHeader h = bulk_waiting_.front();
    bulk_waiting_.pop_front();
    if (h.type == LinkMessageType::kWrite) {
      finish_write(h);
    } else {
      serve_read(kBulk, h);
    }
  }
}

void UdpLink::serve_read(std::uint8_t channel, const LinkHeader& h) {
  // A reply without bytes takes memory, too.
  const std::uint64_t charge = std::max(h.length, kHeaderCharge);
  if (charge > kMostRead || reply_bytes_ + charge > kMostReplyBytes) return misbehaved();
  reply_bytes_ += charge;
  LinkHeader reply{.type = LinkMessageType::kReadData, .request = h.request};
  const std::uint8_t back = channel == kUrgent && h.length <= kShortReply ? kUrgent : kBulk;
  int err = 0;
  {
    auto landing = land(h, h.offset, h.length, Rights::kRead, &err);
    if (err == 0) {
      std::span<const std::byte> bytes(landing.get(), static_cast<std::size_t>(h.length));
      std::uint64_t word;
      if (is_word(bytes.data(), bytes.size())) {  // read as one, like a load over a mapped link
        auto* p = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(bytes.data()));
        // PAIR aperture.publish: over packets, the link is the one that loads
        word = words::load_acquire(std::atomic_ref(*p));
        bytes = std::as_bytes(std::span(&word, 1));
      }
      send(back, reply, bytes, true, true, kReply | charge);
    }
  }
  if (err != 0) {
    reply.err = static_cast<std::uint32_t>(err);
    send(back, reply, {}, true, true, kReply | charge);
    return;
  }
  nic::match_for_packets(node_->owner_.nic->image(), h.aperture, h.offset, h.length,
                         nic::AccessKind::kRead);
}

bool UdpLink::take_read_data(const LinkHeader& h, std::uint32_t offset,
                             std::span<const std::byte> bytes) {
  auto it = pending_.find(h.request);
  if (it == pending_.end()) return true;  // get() has given it up
  const Pending& p = it->second;
  if (p.kind != Pending::Kind::kGet && p.kind != Pending::Kind::kRead) return false;
  if (offset > p.length || bytes.size() > p.length - offset) return false;
  if (!bytes.empty() && !p.cancelled) std::memcpy(p.local + offset, bytes.data(), bytes.size());
  return true;
}

void UdpLink::end_read(const LinkHeader& h, std::uint32_t total,
                       std::span<const std::byte> payload) {
  const auto it = pending_.find(h.request);
  const bool whole = it == pending_.end() || h.err != 0 || it->second.length == total;
  if (!whole || !take_read_data(h, 0, payload)) misbehaved();
  finish(h.request, static_cast<int>(h.err));
}

// --- answers -------------------------------------------------------------------------------------

void UdpLink::complete(std::uint64_t request, Pending& pending) {
  const Pending done = pending;
  pending_.erase(request);
  --transfers_;
  if (detached_) return;
  node_->tell_transfer(done.token, done.cancelled ? ECANCELED : done.err,
                       done.err == 0 && !done.cancelled ? done.length : 0);
}

void UdpLink::finish(std::uint64_t request, int err) {
  auto it = pending_.find(request);
  if (it == pending_.end() || it->second.answered) return;
  Pending& p = it->second;
  p.answered = true;
  p.err = err;
  if (!p.is_transfer()) {
    node_->announce();
  } else if (p.sent) {
    complete(request, p);
  }
}

void UdpLink::on_sent(std::uint8_t, std::uint64_t token) {
  if ((token & kReply) != 0) {
    reply_bytes_ -= token & ~kReply;
    return;
  }
  auto it = pending_.find(token);
  if (it == pending_.end() || it->second.kind != Pending::Kind::kWrite) return;
  it->second.sent = true;
  if (it->second.answered) complete(token, it->second);
}

void UdpLink::on_down() {
  if (connection_ != nullptr) connection_->detach_all();
  connection_ = nullptr;
  if (detached_) return;
  detached_ = true;
  // PAIR udp_link.alive: what came before is placed
  words::store_release(alive_, false);
  std::erase_if(pending_, [this](const auto& entry) {
    const Pending& p = entry.second;
    if (p.is_transfer()) node_->tell_transfer(p.token, p.cancelled ? ECANCELED : ECONNRESET, 0);
    return p.is_transfer();
  });
  transfers_ = 0;
  incoming_.clear();
  bulk_waiting_.clear();
  node_->tell([link = shared_from_this()](auto& sink) { sink.on_link_down(link); });
  node_->announce();
}

// --- messages ------------------------------------------------------------------------------------

bool UdpLink::on_fragment(std::uint8_t channel, std::span<const std::byte> header, std::uint32_t,
                          std::uint32_t offset, std::span<const std::byte> bytes) {
  if (channel != kBulk || detached_) return detached_;
  LinkHeader h;
  if (!read_link_header(header, &h)) return true;  // on_message() says so
  if (h.type == LinkMessageType::kWrite) {
    place_bulk(h, h.offset + offset, bytes);
  } else if (h.type == LinkMessageType::kReadData && !take_read_data(h, offset, bytes)) {
    misbehaved();
  }
  return true;
}

void UdpLink::on_message(std::uint8_t channel, std::span<const std::byte> header,
                         std::uint32_t total, std::span<const std::byte> payload) {
  if (detached_) return;
  LinkHeader h;
  if (!read_link_header(header, &h) || (channel != kUrgent && channel != kBulk))
    return misbehaved();
  if (channel == kBulk) {
    take_bulk(h, total, payload);
  } else {
    take_urgent(h, total, payload);
    ++urgent_released_;
  }
  run_bulk();
}

void UdpLink::take_bulk(const LinkHeader& h, std::uint32_t total,
                        std::span<const std::byte> payload) {
  if (h.type == LinkMessageType::kReadData) return end_read(h, total, payload);
  const bool write = h.type == LinkMessageType::kWrite;
  if ((!write && h.type != LinkMessageType::kRead) || bulk_waiting_.size() >= kMostIncoming)
    return misbehaved();
  if (write && (!payload.empty() || total == 0)) place_bulk(h, h.offset, payload);
  bulk_waiting_.push_back(h);
}

// Released in order, so only chunks of RDMA sent later may have placed something there already.
void UdpLink::take_put(const LinkHeader& h, std::span<const std::byte> bytes) {
  RangeSet later;
  for (const Incoming& chunk : incoming_) {
    if (chunk.header.after > urgent_released_) add_placed(chunk, h, &later);
  }
  const int err = place(h, h.offset, bytes, later);
  if (err == 0) {
    nic::match_for_packets(node_->owner_.nic->image(), h.aperture, h.offset, bytes.size(),
                           nic::AccessKind::kWrite);
    return;
  }
  send_answer({.type = LinkMessageType::kRefused,
               .err = static_cast<std::uint32_t>(err),
               .aperture = h.aperture,
               .generation = h.generation});
}

void UdpLink::take_import(const LinkHeader& h, std::span<const std::byte> payload) {
  RdmaCookie cookie;
  if (payload.size() != sizeof cookie) return misbehaved();
  std::memcpy(&cookie, payload.data(), sizeof cookie);
  auto grant = node_->owner_.nic->check_cookie(cookie);
  send_answer({.type = LinkMessageType::kImportDone,
               .err = grant ? 0 : static_cast<std::uint32_t>(grant.error().err),
               .request = h.request});
}

void UdpLink::take_oob(std::span<const std::byte> payload) {
  constexpr std::size_t kFixed = offsetof(OobMessage, payload);
  OobMessage message;
  if (payload.size() < kFixed || payload.size() > sizeof message) return misbehaved();
  std::memcpy(static_cast<void*>(&message), payload.data(), payload.size());
  if (message.length != payload.size() - kFixed) return misbehaved();
  if (node_->waiting_up_calls() >= kMostOobWaiting) return;  // as where an endpoint's queue is full
  node_->tell([link = shared_from_this(), message](auto& sink) { sink.on_oob(link, message); });
}

void UdpLink::take_urgent(const LinkHeader& h, std::uint32_t total,
                          std::span<const std::byte> payload) {
  if (payload.size() != total) return misbehaved();
  switch (h.type) {
    case LinkMessageType::kPut: take_put(h, payload); return;
    case LinkMessageType::kRead: serve_read(kUrgent, h); return;
    case LinkMessageType::kImport: take_import(h, payload); return;
    case LinkMessageType::kOob: take_oob(payload); return;
    case LinkMessageType::kRefused: {
      auto it = imported_.find({h.aperture, h.generation});
      if (it != imported_.end()) it->second.refused = h.err != 0 ? static_cast<int>(h.err) : ESTALE;
      return;
    }
    case LinkMessageType::kReadData: end_read(h, total, payload); return;
    case LinkMessageType::kWriteDone:
    case LinkMessageType::kImportDone: finish(h.request, static_cast<int>(h.err)); return;
    case LinkMessageType::kWrite: misbehaved(); return;
  }
}

}  // namespace clan::udp

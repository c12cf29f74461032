// What makes progress: messages that have come, sends that have ended, peers that have gone.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "objects/cq.h"
#include "objects/domain.h"
#include "objects/endpoint.h"
#include "objects/memory_region.h"
#include "system/other_hosts.h"
#include "transport/transport.h"
#include "wire/atomic_service.h"
#include "wire/pieces.h"

namespace clan::ofi {
namespace {

constexpr int kMostMessages = 64;  ///< taken in one call of progress()

// What the sender of a message to another host says of its end: 0 or errno.
int placed_err(const WireHeader& header) {
  return header.data <= 4095 ? static_cast<int>(header.data) : EIO;
}

}  // namespace

bool Transport::make_progress(const Cq* until, bool pending) {
  if (domain_.inherited()) [[unlikely]]
    return false;
  progressing_ = true;
  bool moved = true;
  try {
    moved = work_off(until, pending);
  } catch (const std::bad_alloc&) {
    // Half of something has been done. What of it was a peer's is not done again: it hears that we
    // are gone.
    break_with(taking_);
  }
  if (replies_.take_lost()) [[unlikely]]
    break_with_lost();
  progressing_ = false;
  return moved;
}

// `pending`: nobody has fetched packets of other hosts yet, as a poll of a quiet channel does. Once
// is enough: it is a system call.
bool Transport::work_off(const Cq* until, bool pending) {
  MessageEndpoint& messages = *channel_.messages;
  bool moved = false;
  taking_ = kNoPeer;
  if (!held_.empty()) [[unlikely]]
    resume_held();
  for (int i = 0; i < kMostMessages; ++i) {
    auto message = pending && i == 0 ? messages.peek() : messages.peek_fetched();
    if (!message) break;
    taking_ = message->from;
    if (!arrived(*message)) break;
    moved = true;
    if (until != nullptr && !until->empty()) break;
  }
  taking_ = kNoPeer;
  if (posted_sends_ > 0) moved = take_completions() || moved;
  if (!accessing_.empty()) moved = look_after_accesses() || moved;
  if (memory_.copies_slowly()) [[unlikely]] {
    const auto ended = [this](Peer& peer, const SlowCopies& slow) { end_slow(peer, slow); };
    moved = memory_.look_after_slow(ended) || moved;
  }
  if (far_.any()) {
    const auto ended = [this](Peer& peer, const SlowCopies& slow) { end_slow(peer, slow); };
    moved = far_.look_after(ended) || moved;
  }
  if (replies_.has_backlog()) replies_.flush_all([this](Peer& peer) { return flush(peer); });
  PeerIndex gone;
  int reason;
  while (messages.take_departed(&gone, &reason)) {
    departed(gone, reason);
    moved = true;
  }
  return moved;
}

bool Transport::take_completions() {
  bool moved = false;
  SendCompletion done[16];
  for (std::size_t n = std::size(done); n == std::size(done);) {
    n = channel_.messages->poll_sent(done);
    for (std::size_t i = 0; i < n; ++i) {
      auto& operation = *reinterpret_cast<Operation*>(done[i].cookie);
      --posted_sends_;
      operation.waits_for_copy = false;
      if (done[i].status != 0) {
        operation.err = done[i].status;
        operation.waits_for_answer = false;
      }
      operations_.settle(operation);
      moved = true;
    }
  }
  return moved;
}

// --- messages ------------------------------------------------------------------------------------

// The rest of the world for atomic operations that a peer has asked for.
class Transport::AtomicSide final : public AtomicHost {
 public:
  AtomicSide(Transport& transport, Peer& peer) : transport_(transport), peer_(peer) {}

  int find(std::uint64_t key) override { return region(key) == nullptr ? FI_ENOKEY : 0; }
  int allows(std::uint64_t key, std::uint64_t address, std::uint64_t length,
             std::uint64_t access) override {
    const MemoryRegion* const r = region(key);
    if (r == nullptr) return FI_ENOKEY;
    return r->allows(address, length, access) ? 0 : FI_EACCES;
  }
  int apply(std::uint64_t key, std::uint64_t address, fi_datatype type, fi_op op, AtomicKind kind,
            const std::byte* operands, const std::byte* comparands, std::byte* found,
            std::size_t count) override {
    const MemoryRegion* const r = region(key);
    if (r == nullptr) return FI_ENOKEY;
    return apply_atomic(*r, address, type, op, kind, operands, comparands, found, count);
  }
  void note_region(std::uint64_t key, std::uint64_t what) override {
    if (MemoryRegion* r = region(key)) r->note_access(what);
  }
  void note_endpoint(std::uint16_t context, std::uint64_t what) override {
    if (Endpoint* endpoint = transport_.receiver_.endpoint(context)) endpoint->note_access(what);
  }
  int read(const SetAside& aside, std::uint64_t offset, std::span<std::byte> to) override {
    auto s = transport_.channel_.messages->copy(aside, offset, to);
    return s ? 0 : s.error().err;
  }
  void finish(const SetAside& aside) override { transport_.channel_.messages->finish(aside); }
  void reply(std::span<const std::byte> message) override {
    transport_.replies_.send(peer_, message);
  }

 private:
  MemoryRegion* region(std::uint64_t key) { return transport_.domain_.find_region(key); }
  Transport& transport_;
  Peer& peer_;
};

// False: the message must wait, and is still in front.
[[gnu::always_inline]] inline bool Transport::arrived(const IncomingMessage& message) {
  MessageEndpoint& messages = *channel_.messages;
  std::span<const std::byte> head = message.offered ? message.header : message.bytes;
  WireHeader header;
  Peer* const peer = peers_.by_index(message.from);
  if (!take_front(head, &header)) {
    messages.drop();
    return true;
  }
  if (peer == nullptr) {
    arrived_from_stranger(message.from, header, head);
    return true;
  }
  if (replies_.has_backlog() && must_wait(message.from, *peer, header)) [[unlikely]] {
    messages.hold();
    held_.add(message.from, nullptr);
    return true;
  }
  if (header.op == Op::kMessage || header.op == Op::kTagged) {
    const auto taken = (header.flags & kOffered) == 0
                           ? receiver_.arrived(*peer, header, message)
                           : arrived_offer(*peer, header, head, message.from);
    if (taken == Receiver::Taken::kInFront) messages.drop();
    return taken != Receiver::Taken::kWaits;
  }
  switch (header.op) {
    case Op::kAck:
    case Op::kAtomicReply:
    case Op::kGetReply: arrived_answer(*peer, header, head); break;
    case Op::kRmaDone: arrived_notice(*peer, header, head); break;
    case Op::kPlace: arrived_place(*peer, header, head); break;
    case Op::kPlaced: receiver_.placed(message.from, header.tag, placed_err(header)); break;
    case Op::kPut:
    case Op::kGet:
      if (arrived_access(message.from, *peer, header, head)) return true;
      break;
    case Op::kAtomic: {
      AtomicSide side(*this, *peer);
      serve_atomic(side, header, head);
      break;
    }
    case Op::kLongAtomic: arrived_long_atomic(*peer, header, head, message); return true;
    default: break;
  }
  messages.drop();
  return true;
}

void Transport::arrived_from_stranger(PeerIndex from, const WireHeader& header,
                                      std::span<const std::byte> bytes) {
  const auto outcome = handshake_.arrived(from, header, bytes, receiver_.endpoint(0));
  if (outcome.flush != nullptr) (void)flush(*outcome.flush);
  if (outcome.hang_up != nullptr) hang_up(*outcome.hang_up);
}

// Whether a request has to wait as its peer does not take the replies to others. Not where the peer
// has gone: then there is no more to come.
bool Transport::must_wait(PeerIndex from, const Peer& peer, const WireHeader& header) {
  bool waits = peer.replies.bytes > kMostKept;
  switch (header.op) {
    case Op::kMessage:
    case Op::kTagged: waits = waits && (header.flags & (kWantsAck | kOffered)) != 0; break;
    case Op::kLongAtomic: waits = waits || peer.long_atomic != nullptr; break;
    case Op::kGet:
    case Op::kAtomic: break;
    default: return false;
  }
  return waits && !channel_.messages->has_gone(from);
}

void Transport::resume_held() {
  MessageEndpoint& messages = *channel_.messages;
  held_.resume(
      [this](PeerIndex from) {
        const Peer* const peer = peers_.by_index(from);
        return peer != nullptr &&
               (peer->replies.bytes > kMostKept / 2 || peer->long_atomic != nullptr);
      },
      [&](PeerIndex from) { return messages.has_gone(from); },
      [&](PeerIndex from) { messages.resume(from); });
}

void Transport::arrived_answer(Peer& peer, const WireHeader& header,
                               std::span<const std::byte> bytes) {
  Operation* const found = operations_.answered(header.id, peer, header.op);
  if (found == nullptr) return;
  Operation& operation = *found;
  if (header.op == Op::kGetReply) {
    if (bytes.size() != operation.results[0].iov_len) return;
    if (operation.owner != nullptr)
      std::memcpy(operation.results[0].iov_base, bytes.data(), bytes.size());
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
  operations_.settle(operation);
}

void Transport::arrived_notice(Peer& peer, const WireHeader& header,
                               std::span<const std::byte> bytes) {
  RmaNotice notice;
  if (!take_front(bytes, &notice)) return;
  receiver_.note_access(peer, header, notice.read == 1 ? FI_REMOTE_READ : FI_REMOTE_WRITE,
                        notice.length, (header.flags & kHasData) != 0 ? &header.data : nullptr);
}

void Transport::arrived_long_atomic(Peer& peer, const WireHeader& header,
                                    std::span<const std::byte> bytes,
                                    const IncomingMessage& message) {
  MessageEndpoint& messages = *channel_.messages;
  AtomicRequest request;
  if (!take_front(bytes, &request)) return messages.drop();
  std::optional<SetAside> aside;
  if (message.offered) {
    auto taken = messages.set_aside();
    if (!taken) return messages.drop();
    aside = *taken;
  }
  AtomicSide side(*this, peer);
  LongAtomic work(header, aside, bytes);
  const int err = work.check(side, request);
  const bool many = err == 0 && work.has_many_results();
  if (err != 0) {
    work.conclude(side, err);
  } else if (many) {
    work.keep_body();
    peer.long_atomic = std::make_unique<LongAtomic>(std::move(work));
  } else {
    work.run(side, [] { return true; });
  }
  if (!message.offered) messages.drop();
  if (many && !carry_on(peer)) replies_.note_backlog(peer);
}

// --- replies -------------------------------------------------------------------------------------

// True when nothing is left.
bool Transport::flush(Peer& peer) {
  if (peer.index == kNoPeer && peer.pending != kNoPeer && !peer.replies.empty()) {
    if (accepted(peer) == -FI_EAGAIN) return false;
  }
  return replies_.flush(peer) && carry_on(peer);
}

// The same for the long atomic operation that waits for room for its results.
bool Transport::carry_on(Peer& peer) {
  if (peer.long_atomic && peer.replies.empty()) {
    AtomicSide side(*this, peer);
    if (peer.long_atomic->run(side, [&peer] { return peer.replies.empty(); }))
      peer.long_atomic.reset();
  }
  return peer.replies.empty();
}

// --- peers that have gone ------------------------------------------------------------------------

void Transport::break_with(PeerIndex index) {
  FI_WARN(&g_provider, FI_LOG_EP_DATA, "port %u: no memory for what a peer wants\n",
          address().port());
  if (index == kNoPeer) return;
  try {
    held_.forget(index);
    departed(index, ENOMEM);
  } catch (const std::bad_alloc&) {
  }
}

void Transport::break_with_lost() {
  for (PeerIndex index = 0; index < peers_.end_index(); ++index) {
    Peer* const peer = peers_.by_index(index);
    if (peer == nullptr || !peer->replies.must_disconnect) continue;
    if (peer->index != index && peer->pending != index) continue;
    peer->replies.must_disconnect = false;
    break_with(index);
  }
}

void Transport::departed(PeerIndex index, int reason) {
  Peer* peer = peers_.by_index(index);
  channel_.messages->disconnect(index);
  if (peer == nullptr && !handshake_.connects()) {
    handshake_.forget_unverified(index);
    peer = Handshake::asked_by(receiver_.endpoint(0), index);
  }
  if (peer == nullptr) return;
  peers_.forget_connection(index);
  receiver_.forget_offers(*peer, index);
  receiver_.end_far(index, ECONNRESET);
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
  if (peer->index == kNoPeer) {
    if (const PeerIndex other = peers_.other_connection(*peer); other != kNoPeer)
      handshake_.use(*peer, other);
  }
  if (peer->index != kNoPeer) {
    peer->failure = 0;
    (void)flush(*peer);
    return;
  }
  if (unaccepted) say_why_none(peer->name, peer->failure);
  peer->forget_replies();
  for (Endpoint* endpoint : receiver_.endpoints()) {
    if (endpoint != nullptr) endpoint->peer_left(*peer, reason);
  }
}

// Ends what waits for this peer's answers, and forgets what we know of it.
void Transport::abandon(Peer& peer, int err) {
  peer.replies.must_disconnect = false;
  peer.forget_replies();
  peer.regions.clear();
  if (peer.accesses) peer.accesses->clear();  // their operations end below
  peer.slow.reset();
  peer.atomics = 0;
  operations_.fail_all(peer, err);
}

// An endpoint that meets many peers, one after the other, does not remember them all.
void Transport::forget_peers() {
  peers_.mark_own();
  receiver_.mark_referenced();
  operations_.mark_referenced();
  for (Peer* peer : memory_.slow_peers()) peer->referenced = true;
  peers_.forget_unreferenced();
}

}  // namespace clan::ofi

#include "transport/transport.h"

#include <algorithm>
#include <cstdlib>

#include "counter.h"
#include "domain.h"
#include "endpoint.h"
#include "transport/pieces.h"
#include "transport_list.h"

namespace clan::ofi {
namespace {

constexpr int kMostMessages = 64;  ///< taken in one call of progress()
constexpr std::uint16_t kFirstFreePort = 32768;
constexpr std::size_t kEagerBytes = 16384;
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

// --- TransportList --------------------------------------------------------------------------------------

void TransportList::add(Transport& transport) {
  for (auto& [known, times] : transports_) {
    if (known == &transport) {
      ++times;
      return;
    }
  }
  transports_.emplace_back(&transport, 1u);
}

void TransportList::remove(Transport& transport) {
  std::erase_if(transports_,
                [&transport](auto& entry) { return entry.first == &transport && --entry.second == 0; });
}

void TransportList::progress(const Cq* until) {
  for (const auto& [transport, times] : transports_) {
    transport->tidy();
    transport->progress(until);
    if (until != nullptr && !until->empty()) return;
  }
}

// --- life ------------------------------------------------------------------------------------------

Transport::~Transport() {
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

int Transport::start(const SocketAddress& wanted) {
  if (messages_) return 0;
  auto taken = take_name(domain_.context(), wanted, message_options(), &address_);
  if (!taken) return failure(taken.error());
  messages_.emplace(std::move(*taken));
  const int rc = domain_.add_transport(*this);
  if (rc != 0) messages_.reset();  // it may be tried again
  return rc;
}

// More than once does no harm.
int Transport::register_with(EventQueue& events) {
  if (registered_) return 0;
  if (auto s = messages_->register_with(events, 0); !s) return failure(s.error());
  registered_ = true;
  return 0;
}

void Transport::attach(Endpoint& endpoint, unsigned context) {
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

bool Transport::uses(const Counter& counter) const {
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

void Transport::forget(const Endpoint& endpoint) {
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

void Transport::detach(Endpoint& endpoint, unsigned context) {
  if (context < endpoints_.size() && endpoints_[context] == &endpoint) endpoints_[context] = nullptr;
  endpoint.receives().for_each_unexpected([&](List<Unexpected>& list, Unexpected& message) {
    if (message.to != &endpoint) return;
    list.remove(message);
    Unexpected::destroy(&message);
  });
}

// --- operations ------------------------------------------------------------------------------------

Operation& Transport::make_operation(Endpoint* owner, Peer& peer, const Sending& sending) {
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
bool Transport::may_ask(Peer& peer, std::size_t bytes) {
  if (peer.owed + bytes <= kMostOwed) [[likely]]
    return true;
  progress();
  return peer.owed + bytes <= kMostOwed;
}

// An operation that has been sent: its answer brings so much.
void Transport::charge(Operation& operation, std::size_t bytes, bool is_barrier) {
  Peer& peer = *operation.peer;
  operation.owed = bytes;
  peer.owed += bytes;
  if (!is_barrier) return;
  operation.is_barrier = true;
  ++peer.barriers;
  peer.send_by(peer.index);
}

// One of the things that an operation waits for has come.
void Transport::settle(Operation& operation) {
  if (operation.waits_for_copy || operation.waits_for_answer) return;
  finish(operation, operation.err);
}

void Transport::release(Operation& operation) {
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

void Transport::finish(Operation& operation, int err) {
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
int Transport::fence(Peer& peer) {
  const auto busy = [&](const auto& operation) { return operation->live && operation->peer == &peer; };
  for (int attempt = 0; std::any_of(operations_.begin(), operations_.end(), busy); ++attempt) {
    if (attempt > 0) return -FI_EAGAIN;
    progress();
    finish_accesses(peer);
  }
  return 0;
}

// --- sending ---------------------------------------------------------------------------------------

ssize_t Transport::send_after_progress(Peer& to, const WireHeader& header, const void* bytes,
                                       std::size_t length) {
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

Status Transport::send_pieces(Peer& to, const Sending& sending) {
  const std::size_t total = sizeof(WireHeader) + sending.length;
  auto room = messages_->reserve(to.index, total);
  if (!room) return room.error();
  std::memcpy(room->data(), &sending.header, sizeof(WireHeader));
  gather(room->data() + sizeof(WireHeader), sending.iov, sending.count);
  messages_->commit(to.index, total);
  return {};
}

ssize_t Transport::send(Endpoint& from, Peer& to, const Sending& sending) {
  if (int rc = ready(to); rc != 0) return rc;
  const bool whole = sending.length <= kInjectBytes;  // through the ring, header and all
  if (whole && !sending.delivery) {
    for (int attempt = 0;; ++attempt) {
      const Status sent = sending.count == 1
                              ? send_whole(to, sending.header, sending.iov->iov_base, sending.length)
                              : send_pieces(to, sending);
      if (sent.ok()) {
        if (sending.counter != nullptr) sending.counter->count();
        if (sending.completion) from.send_cq()->write({.context = sending.context, .flags = sending.flags});
        return 0;
      }
      if (attempt > 0) return sent.error().err == EAGAIN ? -FI_EAGAIN : failure(sent.error());
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

ssize_t Transport::post(Operation& operation, std::span<const std::byte> header, const Sending& sending,
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

ssize_t Transport::start_atomic(Endpoint& from, Peer& to, const Sending& sending, const iovec* results,
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
void Transport::answer(Peer& peer, const void* message, std::size_t length) {
  if (peer.index == kNoPeer && peer.pending == kNoPeer) return;
  const auto* bytes = static_cast<const std::byte*>(message);
  if (peer.answers.empty()) {
    if (peer.index != kNoPeer) {
      const Status sent = messages_->try_send(peer.index, std::span(bytes, length), {});
      if (sent.ok() || sent.error().err != EAGAIN) return;  // or it has gone, and needs no answer
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

void Transport::note_crowded(Peer& peer) {
  if (!std::exchange(peer.crowded, true)) crowded_.push_back(&peer);
}

// True when nothing is left.
bool Transport::flush(Peer& peer) {
  if (peer.index == kNoPeer && peer.pending != kNoPeer && !peer.answers.empty()) {
    if (const int rc = accepted(peer); rc == -FI_EAGAIN) return false;
  }
  while (!peer.answers.empty()) {
    const std::vector<std::byte>& message = peer.answers.front();
    if (const Status sent = messages_->try_send(peer.index, message, {}); !sent) {
      if (sent.error().err == EAGAIN) return false;
      peer.forget_answers();
      break;
    }
    peer.answer_bytes -= message.size() + kAnswerCost;
    peer.answers.pop_front();
  }
  return carry_on(peer);
}

void Transport::acknowledge(Peer& peer, const WireHeader& header) {
  const WireHeader ack{.op = Op::kAck, .id = header.id};
  answer(peer, &ack, sizeof ack);
}

// --- receiving -------------------------------------------------------------------------------------

bool Transport::make_progress(const Cq* until) {
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

void Transport::break_with(PeerIndex index) {
  FI_WARN(&g_provider, FI_LOG_EP_DATA, "port %u: no memory for what a peer wants\n", address_.port());
  if (index == kNoPeer) return;
  try {
    std::erase_if(held_, [index](const HeldMessage& held) { return held.from == index; });
    departed(index, ENOMEM);
  } catch (const std::bad_alloc&) {
  }
}

void Transport::break_with_doomed() {
  any_doomed_ = false;
  for (PeerIndex index = 0; index < by_index_.size(); ++index) {
    Peer* const peer = by_index_[index];
    if (peer == nullptr || !peer->doomed || (peer->index != index && peer->pending != index)) continue;
    peer->doomed = false;
    break_with(index);
  }
}

bool Transport::work_off(const Cq* until) {
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

bool Transport::arrived(const IncomingMessage& message) {
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
bool Transport::must_wait(PeerIndex from, const Peer& peer, const WireHeader& header) {
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
[[gnu::always_inline]] inline Transport::Taken Transport::arrived_for_receive(
    Peer& peer, const WireHeader& header, const IncomingMessage& message) {
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
      complete_receive(*endpoint, peer, header, message.size, message.bytes.data(), &*aside, *posted,
                       endpoint->receives(), kind);
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

[[gnu::always_inline]] inline void Transport::complete_receive(Endpoint& endpoint, Peer& from,
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
    message->to->transport().deliver(*message, posted, queue, kind);
    // One that has got its message, or is used up, is not the last of the list any more.
    if (queue.posted(kind).last() != &posted) return;
  }
}

void Transport::deliver(Unexpected& message, Posted& posted, ReceiveQueue& queue, ReceiveQueue::Kind kind) {
  complete_receive(*message.to, *message.from, message.header, message.size, message.bytes(),
                   message.offered ? &message.aside : nullptr, posted, queue, kind);
  Unexpected::destroy(&message);
}

void Transport::discard(Unexpected& message) {
  if (message.offered) messages_->finish(message.aside);
  if ((message.header.flags & kWantsAck) != 0) acknowledge(*message.from, message.header);
  Unexpected::destroy(&message);
}

void Transport::arrived_answer(Peer& peer, const WireHeader& header, std::span<const std::byte> bytes) {
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

void Transport::arrived_atomic(Peer& peer, const WireHeader& header, std::span<const std::byte> bytes) {
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

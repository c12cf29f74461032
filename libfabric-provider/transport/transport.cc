// Calls of programs: connecting, sending, and what an endpoint asks its transport for.
#include "transport/transport.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "objects/counter.h"
#include "objects/cq.h"
#include "objects/domain.h"
#include "objects/endpoint.h"
#include "system/transport_list.h"

namespace clan::ofi {
namespace {

// Tells the program how an operation has ended.
void report_operation(const Operation& operation, int err) {
  const Completion completion{.context = operation.context, .flags = operation.flags};
  if (err != 0) {
    if (operation.counter != nullptr) operation.counter->count_error();
    if (Cq* cq = operation.owner->send_cq()) cq->write_error(completion, err);
    return;
  }
  if (operation.counter != nullptr) operation.counter->count();
  if (operation.completion) operation.owner->send_cq()->write(completion);
}

}  // namespace

// --- TransportList -------------------------------------------------------------------------------

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
  std::erase_if(transports_, [&transport](auto& entry) {
    return entry.first == &transport && --entry.second == 0;
  });
}

void TransportList::progress(const Cq* until) {
  if (first_ >= transports_.size()) first_ = 0;
  for (std::size_t i = 0, at = first_; i < transports_.size(); ++i) {
    Transport& transport = *transports_[at].first;
    if (++at == transports_.size()) at = 0;
    transport.tidy();
    transport.progress(until);
    if (until == nullptr || until->empty()) continue;
    first_ = at;
    return;
  }
}

// --- life ----------------------------------------------------------------------------------------

Transport::Transport(Domain& domain)
    : domain_(domain),
      operations_(&report_operation),
      replies_([this](PeerIndex to, std::span<const std::byte> message) {
        return channel_.messages->try_send(to, message, {});
      }),
      memory_(domain),
      far_(domain, memory_),
      receiver_(domain, channel_, replies_),
      handshake_(channel_, peers_) {}

Transport::~Transport() {
  if (channel_.messages) finish_accesses();
  if (handshake_.turned_away() > 0)
    FI_INFO(&g_provider, FI_LOG_EP_CTRL, "port %u: %llu messages of strangers\n", address().port(),
            static_cast<unsigned long long>(handshake_.turned_away()));
}

int Transport::start(const SocketAddress& wanted) {
  if (channel_.messages) return 0;
  auto taken = take_name(domain_.context(), wanted, message_options(), &channel_.address);
  if (!taken) return failure(taken.error());
  channel_.messages.emplace(std::move(*taken));
  const int rc = domain_.add_transport(*this);
  if (rc != 0) channel_.messages.reset();  // it may be tried again
  return rc;
}

// More than once does no harm.
int Transport::register_with(EventQueue& events) {
  if (registered_) return 0;
  if (auto s = channel_.messages->register_with(events, 0); !s) return failure(s.error());
  if (int rc = far_.register_with(events); rc != 0) return rc;
  registered_ = true;
  return 0;
}

bool Transport::uses(const Counter& counter) const {
  return operations_.any_counted_by(counter) || receiver_.any_counted_by(counter);
}

void Transport::forget(const Endpoint& endpoint) {
  operations_.forget_owner(endpoint);
  far_.cancel_abandoned([this](Peer& peer, const SlowCopies& copies) { end_slow(peer, copies); });
  // Its memory is its program's again.
  for (Peer* peer : memory_.slow_peers()) {
    if (!peer->slow) continue;
    const bool is_front = peer->slow->operation == nullptr;
    Operation* const operation =
        is_front ? peer->accesses->front().operation : peer->slow->operation;
    if (operation->owner != nullptr) continue;
    peer->slow.reset();
    if (!is_front) operations_.finish(*operation, ECANCELED);
  }
}

// --- connecting ----------------------------------------------------------------------------------

int Transport::ready_slowly(Peer& peer) {
  if (peer.barriers > 0) {
    progress();
    if (peer.barriers > 0) return -FI_EAGAIN;
  }
  return connected(peer);
}

int Transport::connected(Peer& peer) {
  if (peer.index != kNoPeer) return 0;
  return handshake_.connects() || peer.pending != kNoPeer ? connect(peer) : -FI_ENOTCONN;
}

int Transport::connect(Peer& peer) {
  if (peer.pending == kNoPeer) {
    if (const int err = std::exchange(peer.failure, 0); err != 0) return -err;
    if (const int rc = handshake_.begin(peer, {}); rc != 0) return rc;
    handshake_.wait_briefly(peer);
    // It may be connecting to us as well, and then one of the two connections is given up.
    progress();
    if (peer.index != kNoPeer) return 0;
    if (peer.pending == kNoPeer)
      return peer.failure != 0 ? -std::exchange(peer.failure, 0) : -FI_EAGAIN;
  }
  return accepted(peer);
}

// 0; -FI_EAGAIN: it has yet to accept; or why it never will.
int Transport::accepted(Peer& peer) {
  const PeerIndex index = peer.pending;
  if (auto s = handshake_.accepted(peer); !s) {
    if (s.error().err == EAGAIN) return -FI_EAGAIN;
    FI_INFO(&g_provider, FI_LOG_EP_CTRL, "port %u: %s\n", peer.name.port,
            s.error().message().c_str());
    departed(index, s.error().err);
    if (peer.index != kNoPeer) return 0;
    peer.failure = 0;
    return failure(s.error());
  }
  peer.pending = kNoPeer;
  handshake_.use(peer, index);
  (void)flush(peer);  // introduce() may have been there first
  return 0;
}

int Transport::introduce(const Name& to, const WireHeader& header, const void* data,
                         std::size_t length, bool hear, Peer** peer) {
  *peer = &peers_.named(to);
  Peer& other = **peer;
  if (other.index != kNoPeer) return static_cast<int>(send_at_once(other, header, data, length));
  std::vector<std::byte> message(sizeof header + length);
  std::memcpy(message.data(), &header, sizeof header);
  if (length > 0) std::memcpy(message.data() + sizeof header, data, length);
  // No progress here: the caller has yet to note which peer it has asked.
  other.failure = 0;
  if (other.pending != kNoPeer) {
    replies_.send(other, message);
    return 0;
  }
  if (const int rc = handshake_.begin(other, message); rc != 0) return rc;
  if (!hear) peers_.forget_connection(other.pending);
  handshake_.wait_briefly(other);
  return 0;
}

void Transport::hang_up(Peer& peer) {
  if (domain_.inherited()) return;
  finish_accesses(peer);
  handshake_.give_up(peer);
  const PeerIndex index = peer.index;
  peer.send_by(kNoPeer);
  if (index != kNoPeer) {
    held_.forget(index);
    handshake_.drop_connection(index);
    receiver_.end_far(index, ECANCELED);
  }
  abandon(peer, ECANCELED);
}

// --- sending -------------------------------------------------------------------------------------

// Whether a peer may be asked for so much more.
bool Transport::may_ask(Peer& peer, std::size_t bytes) {
  if (has_credit(peer, bytes)) [[likely]]
    return true;
  progress();
  return has_credit(peer, bytes);
}

int Transport::fence(Peer& peer) {
  for (int attempt = 0; operations_.any_with(peer); ++attempt) {
    if (attempt > 0) return domain_.inherited() ? -ESHUTDOWN : -FI_EAGAIN;
    progress();
    finish_accesses(peer);
  }
  return 0;
}

ssize_t Transport::send_after_progress(Peer& to, const WireHeader& header, const void* bytes,
                                       std::size_t length) {
  if (int rc = ready(to); rc != 0) return rc;
  for (int attempt = 0;; ++attempt) {
    const Status sent = send_whole(*channel_.messages, to.index, header, bytes, length);
    if (sent.ok()) return 0;
    // progress() notices a peer that has gone, and the next attempt connects anew.
    if (sent.error().err != EAGAIN && attempt > 0) return failure(sent.error());
    if (attempt > 0) return -FI_EAGAIN;
    progress();
    if (int rc = ready(to); rc != 0) return rc;
  }
}

ssize_t Transport::send(Endpoint& from, Peer& to, const SendRequest& request) {
  if (int rc = ready(to); rc != 0) return rc;
  const bool whole = request.length <= kInjectBytes;  // through the ring, header and all
  if (whole && !request.delivery) {
    for (int attempt = 0;; ++attempt) {
      const Status sent = send_request(*channel_.messages, to.index, request);
      if (sent.ok()) {
        if (request.counter != nullptr) request.counter->count();
        if (request.completion)
          from.send_cq()->write({.context = request.context, .flags = request.flags});
        return 0;
      }
      if (attempt > 0) return sent.error().err == EAGAIN ? -FI_EAGAIN : failure(sent.error());
      progress();
      if (int rc = ready(to); rc != 0) return rc;
    }
  }
  if (request.length > kLongestInFragments && !to.name.local())
    return send_offer(from, to, request);
  if (request.delivery && !may_ask(to, kAnswerCost)) return -FI_EAGAIN;
  Operation& operation = operations_.make(&from, to, request);
  WireHeader header = request.header;
  header.id = operation.id;
  if (request.delivery) {
    header.flags |= kWantsAck;
    operation.answer = Op::kAck;
  }
  const ssize_t rc = post(operation, bytes_of(header), request, request.delivery);
  if (rc == 0 && request.delivery) operations_.charge(operation, kAnswerCost, false);
  return rc;
}

// Hands a message to the engine. 0, or why not: then the operation has been released.
ssize_t Transport::post(Operation& operation, std::span<const std::byte> header,
                        const SendRequest& request, bool waits_for_answer) {
  Peer& to = *operation.peer;
  MessageEndpoint& messages = *channel_.messages;
  const std::span<const std::byte> body = lasting_bytes(operations_, operation, request);
  const std::uint64_t cookie = reinterpret_cast<std::uint64_t>(&operation);
  auto posted = messages.post(to.index, header, body, cookie);
  if (!posted) {
    progress();
    const int rc = ready(to);
    if (rc == 0) posted = messages.post(to.index, header, body, cookie);
    if (!posted) {
      operations_.release(operation);
      return rc != 0 ? rc : failure(posted.error());
    }
  }
  operation.waits_for_copy = !*posted;
  // Not before: if the peer turns out to have gone, the return value says so.
  operation.waits_for_answer = waits_for_answer;
  if (operation.waits_for_copy) ++posted_sends_;
  operations_.settle(operation);
  return 0;
}

// --- atomic operations ---------------------------------------------------------------------------

namespace {

std::size_t total_bytes(std::span<const iovec> pieces) {
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

void expect_results(Operation& operation, std::span<const iovec> results) {
  operation.answer = Op::kAtomicReply;
  operation.result_count = static_cast<std::uint32_t>(results.size());
  std::copy(results.begin(), results.end(), operation.results);
}

}  // namespace

ssize_t Transport::start_atomic(Endpoint& from, Peer& to, const SendRequest& request,
                                std::span<const iovec> results) {
  const ssize_t rc = request.header.op == Op::kAtomic
                         ? start_short_atomic(from, to, request, results)
                         : start_long_atomic(from, to, request, results);
  if (rc == 0) {
    ++to.atomics;
    ++to.atomics_sent;
  }
  return rc;
}

ssize_t Transport::start_short_atomic(Endpoint& from, Peer& to, const SendRequest& request,
                                      std::span<const iovec> results) {
  const std::size_t credit = kAnswerCost + total_bytes(results);
  if (!may_ask(to, credit)) return -FI_EAGAIN;
  if (int rc = ready(to); rc != 0) return rc;
  MessageEndpoint& messages = *channel_.messages;
  const std::size_t total = sizeof(WireHeader) + request.length;
  auto room = messages.reserve(to.index, total);
  if (!room) {
    progress();
    if (int rc = ready(to); rc != 0) return rc;
    room = messages.reserve(to.index, total);
    if (!room) return failure(room.error());
  }
  Operation& operation = operations_.make(&from, to, request);
  operation.waits_for_answer = true;
  expect_results(operation, results);
  WireHeader header = request.header;
  header.id = operation.id;
  std::memcpy(room->data(), &header, sizeof header);
  gather(room->data() + sizeof header, request.iov, request.count);
  messages.commit(to.index, total);
  operations_.charge(operation, credit, false);
  return 0;
}

ssize_t Transport::start_long_atomic(Endpoint& from, Peer& to, const SendRequest& request,
                                     std::span<const iovec> results) {
  const std::size_t bytes = total_bytes(results);
  const bool is_barrier = bytes > kMostAtOnce;
  const std::size_t credit = is_barrier ? kAnswerCost : bytes + kAnswerCost;
  if (!may_ask(to, credit)) return -FI_EAGAIN;
  if (int rc = ready(to); rc != 0) return rc;
  Operation& operation = operations_.make(&from, to, request);
  expect_results(operation, results);
  WireHeader header = request.header;
  header.id = operation.id;
  // The request goes with the header, so that operands in one piece are not copied here.
  std::byte head[sizeof header + sizeof(AtomicRequest)];
  std::memcpy(head, &header, sizeof header);
  std::memcpy(head + sizeof header, request.iov[0].iov_base, sizeof(AtomicRequest));
  SendRequest body = request;
  ++body.iov;
  --body.count;
  body.length -= sizeof(AtomicRequest);
  const ssize_t rc = post(operation, head, body, true);
  if (rc == 0) operations_.charge(operation, credit, is_barrier);
  return rc;
}

}  // namespace clan::ofi

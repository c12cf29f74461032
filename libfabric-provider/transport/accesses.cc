// Accesses to memory: small ones as messages, at both ends, and those by system call.
//
// All small accesses to a peer have been made before a large one is.
#include <clan/detail/clock.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "objects/domain.h"
#include "objects/endpoint.h"
#include "objects/memory_region.h"
#include "transport/transport.h"
#include "wire/pieces.h"

namespace clan::ofi {

// --- by system call ------------------------------------------------------------------------------

int Transport::access(Peer& peer, bool write, std::uint64_t key, std::uint64_t address,
                      std::byte* local, std::size_t length) {
  if (int rc = connected(peer); rc != 0) return rc;
  return memory_.access(peer, write, key, address, local, length);
}

void Transport::go_on_later(Endpoint& from, Peer& peer, const SendRequest& request,
                            SlowCopies copies, std::vector<std::byte> bytes) {
  Operation& operation = operations_.make(&from, peer, request);
  operation.waits_for_answer = true;
  operation.answer = Op::kPut;
  operation.gathered = std::move(bytes);
  operations_.charge(operation, 1, true);
  copies.operation = &operation;
  memory_.keep_slow(peer, std::move(copies));
}

// --- by RDMA, on another host --------------------------------------------------------------------

int Transport::ready_for_far(Peer& peer, bool write) {
  const auto must_wait = [&] {
    return peer.barriers > peer.far_reads + peer.far_writes || (write && peer.far_reads > 0);
  };
  if (must_wait()) {
    progress();
    if (must_wait()) return -FI_EAGAIN;
  }
  return connected(peer);
}

int Transport::start_far_access(Endpoint& from, Peer& peer, const SendRequest& request,
                                SlowCopies copies, std::span<const FarPiece> pieces,
                                std::vector<std::byte> bytes) {
  Operation& operation = operations_.make(&from, peer, request);
  operation.gathered = std::move(bytes);
  copies.operation = &operation;
  int rc;
  try {
    rc = far_.begin(peer, pieces, std::move(copies));
  } catch (const std::bad_alloc&) {
    operations_.release(operation);
    throw;
  }
  if (rc != 0) {
    operations_.release(operation);
    return rc;
  }
  // Not an answer of the peer's: its departure does not end it, while our memory is in use.
  operation.waits_for_copy = true;
  operations_.charge(operation, 1, true);
  return 0;
}

int Transport::tell_owner(Peer& peer, std::uint16_t context, bool write, std::uint64_t key,
                          std::uint64_t address, std::uint64_t length, const std::uint64_t* data) {
  if (int rc = connected(peer); rc != 0) return rc;
  struct {
    WireHeader header{.op = Op::kRmaDone};
    RmaNotice notice;
  } message;
  message.header.tag = key;
  message.header.context = context;
  if (data != nullptr) {
    message.header.flags = kHasData;
    message.header.data = *data;
  }
  message.notice.address = address;
  message.notice.length = length;
  message.notice.read = write ? 0 : 1;
  replies_.send(peer, bytes_of(message));
  return 0;
}

// --- small ones, at the initiator ----------------------------------------------------------------

// What the list of one peer needs of the transport.
class Transport::AccessHost {
 public:
  AccessHost(Transport& transport, Peer& peer) : transport_(transport), peer_(peer) {}

  bool has_left(const SmallAccess& a) const {
    return transport_.channel_.messages->has_left(peer_.index, a.mark);
  }
  void finish_write(SmallAccess& a) { transport_.operations_.finish(*a.operation, 0); }
  static std::uint64_t now_ns() { return monotonic_ns(); }
  std::uint64_t atomics_answered() const { return peer_.atomics_sent - peer_.atomics; }
  bool reap(SmallAccesses&) { return transport_.reap(peer_); }
  bool make(SmallAccess& access);
  void end(SmallAccess& access, int rc);

 private:
  // Unless an answer has ended the operation.
  static bool waits(const SmallAccess& access) {
    return access.operation->live && access.operation->generation == access.generation;
  }
  Transport& transport_;
  Peer& peer_;
};

// The access is ours: it is made here and now. False: as soon as the peer's driver thread answers.
[[gnu::noinline]] bool Transport::AccessHost::make(SmallAccess& access) {
  RemoteMemory& memory = transport_.memory_;
  Operation& operation = *access.operation;
  int rc = 0;
  if (waits(access) && access.bytes != nullptr) {
    rc = memory.access(peer_, true, access.key, access.address, access.bytes, access.length);
  } else if (waits(access) && operation.owner != nullptr) {
    rc = memory.access(peer_, false, access.key, access.address,
                       static_cast<std::byte*>(operation.results[0].iov_base), access.length);
  }
  if (memory.has_begun()) {
    const int ended = memory.end();
    if (ended == -FI_EINPROGRESS) {
      SlowCopies copies;
      copies.err = -rc;
      memory.keep_slow(peer_, std::move(copies));
      return false;
    }
    if (rc == 0) rc = ended;
  } else if (rc == -FI_EAGAIN) {
    return false;
  }
  end(access, rc);
  return true;
}

void Transport::AccessHost::end(SmallAccess& access, int rc) {
  const bool waited = waits(access);
  end_own_access(*access.word, rc == 0);
  // it may have held the message and gone to sleep
  transport_.channel_.messages->nudge(peer_.index);
  if (waited) transport_.operations_.finish(*access.operation, -rc);
}

inline bool Transport::reap(Peer& peer) {
  if (peer.slow) [[unlikely]]
    return false;  // the one in front is being made
  return reap_accesses(*peer.accesses, AccessHost(*this, peer));
}

Transport::Left Transport::take_back(Peer& peer) {
  if (domain_.inherited()) [[unlikely]]
    return Left::kTheirs;
  return take_accesses_back(*peer.accesses, AccessHost(*this, peer));
}

Transport::Left Transport::finish_accesses(Peer& peer) {
  return peer.accesses ? take_back(peer) : Left::kNone;
}

Transport::Left Transport::finish_accesses() {
  Left left = Left::kNone;
  for (Peer* peer : accessing_) left = std::max(left, take_back(*peer));
  return left;
}

bool Transport::look_after_accesses() {
  bool moved = false;
  std::erase_if(accessing_, [&](Peer* peer) {
    SmallAccesses& accesses = *peer->accesses;
    if (accesses.empty()) {
      accesses.listed = false;
      return true;
    }
    if (reap(*peer)) {
      moved = true;
    } else if (patience_ends(accesses, monotonic_ns)) {
      const std::uint64_t first = accesses.first;
      take_back(*peer);
      moved = accesses.first != first || moved;
    }
    return false;
  });
  return moved;
}

// Room for the message of a small access. 0, or what start_small_access() answers.
[[gnu::always_inline]] inline int Transport::reserve_access(Peer& to, SmallAccesses& accesses,
                                                            std::size_t bytes,
                                                            std::span<std::byte>* room) {
  if (accesses.full()) progress();
  Result<std::span<std::byte>> found = Error{EAGAIN, ""};
  if (!accesses.full()) found = channel_.messages->reserve(to.index, bytes);
  if (!found) {
    if (found.error().err != EAGAIN) return failure(found.error());
    progress();
    return -FI_EAGAIN;
  }
  *room = *found;
  return 0;
}

namespace {

// Writes the message of an access behind its header and word. Where the bytes of a write lie.
std::byte* write_access(std::byte* at, const SmallTransfer& t) {
  if (!t.write) {
    const GetRequest request{t.length};
    std::memcpy(at, &request, sizeof request);
    return nullptr;
  }
  if (t.data != nullptr) {
    std::memcpy(at, t.data, sizeof *t.data);
    at += sizeof *t.data;
  }
  gather(at, t.local, t.local_count);
  return at;
}

WireHeader access_header(const SmallTransfer& t, std::uint32_t id) {
  return {.op = t.write ? Op::kPut : Op::kGet,
          .flags = t.data != nullptr ? kHasData : std::uint8_t{0},
          .context = t.context,
          .id = id,
          .tag = t.key,
          .data = t.address};
}

}  // namespace

int Transport::start_small_access(Endpoint& from, Peer& to, const SmallTransfer& t) {
  if (!to.accesses) {
    to.accesses.reset(new (std::nothrow) SmallAccesses);
    if (!to.accesses) return -FI_EOPNOTSUPP;
  }
  SmallAccesses& accesses = *to.accesses;
  // A program that makes many without reading a queue keeps peers waiting that do the same.
  if (accesses.direct > 0 || ++accesses.turn % kTurnsPerProgress == 0) progress();
  if (int rc = ready(to); rc != 0) return rc;
  if (accesses.direct > 0) {
    --accesses.direct;
    return -FI_EOPNOTSUPP;
  }
  if (!channel_.messages->shares_messages(to.index)) {
    accesses.direct = kUnshared;  // a message now and then, that it may begin to poll for ours
  }
  const std::size_t extra = t.data != nullptr ? sizeof *t.data : 0;
  const std::size_t body = t.write ? extra + t.length : sizeof(GetRequest);
  const std::size_t total = sizeof(WireHeader) + sizeof(AccessWord) + body;
  if (!t.write && !may_ask(to, t.length + kAnswerCost)) return -FI_EAGAIN;
  std::span<std::byte> room;
  if (int rc = reserve_access(to, accesses, total, &room); rc != 0) return rc;
  accesses.timed = !memory_.copied_by_peers();
  if (!accesses.listed) accessing_.push_back(&to);
  accesses.listed = true;
  // The peer may leave it to us, and this thread may not call again. Threads that sleep have found
  // none; while there are others they look by a timer, or wait for the peer's answers.
  if (accesses.empty()) domain_.look_soon();

  SendRequest request;
  request.context = t.program_context;
  request.flags = FI_RMA | (t.write ? FI_WRITE : FI_READ);
  request.completion = t.completion;
  request.counter = t.counter;
  Operation& operation = operations_.make(&from, to, request);
  operation.waits_for_answer = true;
  operation.answer = t.write ? Op::kPut : Op::kGetReply;
  const WireHeader header = access_header(t, operation.id);
  std::memcpy(room.data(), &header, sizeof header);
  auto* const word = reinterpret_cast<SharedAccessWord*>(room.data() + sizeof header);
  prepare_access(*word);
  std::byte* const bytes = write_access(room.data() + sizeof header + sizeof(AccessWord), t);
  if (!t.write) {
    operation.results[0] = t.local[0];
    operation.result_count = 1;
    operations_.charge(operation, t.length + kAnswerCost, false);
  }
  channel_.messages->commit(to.index, total);
  SmallAccess& access = accesses.push();
  access.word = word;
  access.mark = channel_.messages->sent_mark(to.index);
  access.operation = &operation;
  access.generation = operation.generation;
  access.key = t.key;
  access.address = t.address;
  access.bytes = bytes;
  access.length = t.length;
  access.atomics = to.atomics_sent;
  return 0;
}

// Slow copies have ended: of an operation, or of the small access in front.
void Transport::end_slow(Peer& peer, const SlowCopies& slow) {
  if (slow.receive != 0) return end_message(slow);
  const int rc = copy_failure(slow.err);
  if (slow.operation == nullptr) {
    AccessHost(*this, peer).end(peer.accesses->front(), rc);
    peer.accesses->pop();
    return;
  }
  if (rc == 0 && slow.tells_owner) {
    (void)tell_owner(peer, slow.context, slow.write, slow.key, slow.address, slow.length,
                     slow.data ? &*slow.data : nullptr);
  }
  slow.operation->waits_for_answer = slow.operation->waits_for_copy = false;
  slow.operation->err = -rc;
  operations_.settle(*slow.operation);
}

// --- small ones, at the target -------------------------------------------------------------------

// True: the message is held, and not in front any more.
bool Transport::arrived_access(PeerIndex from, Peer& peer, const WireHeader& header,
                               std::span<const std::byte> bytes) {
  MessageEndpoint& messages = *channel_.messages;
  SharedAccessWord* const word = messages.shared_word(sizeof(WireHeader));
  AccessWord unused;
  if (word == nullptr || !take_front(bytes, &unused)) return false;
  std::uint64_t data = 0;
  const bool has_data = (header.flags & kHasData) != 0;
  if (has_data && !take_front(bytes, &data)) return false;
  const AccessWord state = serve_access(*word, [&] { return serve(peer, header, bytes); });
  if (is_initiators(state) && !messages.has_gone(from)) {
    held_.add(from, word);
    messages.hold();
    return true;
  }
  if (state != kAccessDone || (!has_data && !domain_.rma_events())) return false;
  const bool write = header.op == Op::kPut;
  std::uint64_t length = bytes.size();
  if (GetRequest request; !write && take_front(bytes, &request)) length = request.length;
  receiver_.note_access(peer, header, write ? FI_REMOTE_WRITE : FI_REMOTE_READ, length,
                        has_data ? &data : nullptr);
  return false;
}

// False: there is no such memory, or it does not allow that.
bool Transport::serve(Peer& peer, const WireHeader& header, std::span<const std::byte> bytes) {
  MemoryRegion* region = domain_.find_region(header.tag);
  if (region == nullptr) return false;
  if (header.op == Op::kPut) {
    std::byte* target = region->locate(header.data, bytes.size(), FI_REMOTE_WRITE);
    if (target == nullptr) return false;
    if (!bytes.empty()) std::memcpy(target, bytes.data(), bytes.size());
    return true;
  }
  GetRequest request;
  if (!take_front(bytes, &request) || request.length > kMostSmallAccess) return false;
  const std::byte* source = region->locate(header.data, request.length, FI_REMOTE_READ);
  if (source == nullptr) return false;
  struct {
    WireHeader header{.op = Op::kGetReply};
    std::byte bytes[kMostSmallAccess];
  } reply;
  reply.header.id = header.id;
  std::memcpy(reply.bytes, source, request.length);
  replies_.send(peer, bytes_of(reply).first(sizeof reply.header + request.length));
  return true;
}

}  // namespace clan::ofi

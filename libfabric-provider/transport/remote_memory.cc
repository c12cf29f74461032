// The memory of peers: what Transport does for fi_read() and fi_write().
//
// An access is this processor's copy (process_vm_readv and its like), or, where it is small and the peer
// polls, a message. That one is the peer's to make, in the order in which it takes its messages; but should
// the peer be busy elsewhere, whoever asked takes it back and makes it himself, so that nobody depends on a
// peer that does not poll. AccessWord says who does it. All small accesses to a peer have been made before a
// large one is.
#include <clan/clock.h>

#include <algorithm>

#include "counter.h"
#include "domain.h"
#include "endpoint.h"
#include "transport/pieces.h"
#include "transport/transport.h"

namespace clan::ofi {
namespace {

// A peer's driver thread is waited for under the lock: not long, and not again for a while once that was in
// vain.
constexpr std::int64_t kPatienceMs = 100;
constexpr std::uint64_t kFirstSilenceNs = 100'000'000, kLastSilenceNs = 3'200'000'000u;
constexpr std::uint32_t kMostCopies = 512;  ///< requests of one access
constexpr std::size_t kMostRegions = 4096;  ///< of one peer, remembered
constexpr std::uint32_t kLooksPerClock = 16;
constexpr std::uint32_t kTurnsPerProgress = 8;
constexpr std::uint64_t kPatienceNs = 10'000;  ///< a few of the system calls that it would be otherwise
constexpr std::uint32_t kFirstDirect = 8, kMostDirect = 256;  ///< as often as nobody polls there, doubled
constexpr std::uint32_t kUnshared = 64;                       ///< and where somebody sleeps

}  // namespace

RemoteRegion* Transport::region_of(Peer& peer, std::uint64_t key, int* rc) {
  if (auto it = peer.regions.find(key); it != peer.regions.end()) return &it->second;
  if (peer.silence != 0 && monotonic_ns() < peer.silent_until) {
    *rc = -FI_EAGAIN;
    return nullptr;
  }
  auto found = RemoteAperture::look_up(domain_.context(), NodeId{peer.node}, key, kPatienceMs,
                                       static_cast<std::int64_t>(peer.uid));
  if (!found) {
    *rc = found.error().err == ENOENT ? -FI_ENOKEY : failure(found.error());
    if (found.error().err == ETIMEDOUT) *rc = is_silent(peer);
    return nullptr;
  }
  peer.silence = 0;
  // A region is its owner's own memory, so there is nothing to wait for.
  auto aperture =
      RemoteAperture::import(domain_.context(), found->cookie, 0, static_cast<std::int64_t>(peer.uid));
  if (!aperture) {
    *rc = aperture.error().err == EAGAIN ? -FI_EINVAL : failure(aperture.error());
    return nullptr;
  }
  RegionNote note;
  if (found->note_bytes >= sizeof note) std::memcpy(&note, found->note.data(), sizeof note);
  RemoteRegion region{std::move(*aperture), note.base, note.tell_owner == 1, {}};
  if (note.pieces > 0) {
    *rc = import_pieces(peer, note.pieces, &region);
    if (*rc != 0) return nullptr;
  }
  // Keys that the peer gives but once (FI_MR_PROV_KEY) would be kept for ever. One that is still in use is
  // looked up again.
  if (peer.regions.size() >= kMostRegions && !has_begun_access()) peer.regions.erase(peer.regions.begin());
  auto [it, added] = peer.regions.emplace(key, std::move(region));
  return &it->second;
}

int Transport::is_silent(Peer& peer) {
  peer.silence = std::clamp(peer.silence * 2, kFirstSilenceNs, kLastSilenceNs);
  peer.silent_until = monotonic_ns() + peer.silence;
  return -FI_EAGAIN;
}

int Transport::import_pieces(Peer& peer, std::uint32_t count, RemoteRegion* region) {
  if (count > kRegionPieces) return -FI_EINVAL;
  RegionPiece table[kRegionPieces];
  if (auto s = copy(region->aperture, false, 0, reinterpret_cast<std::byte*>(table), count * sizeof *table);
      !s) {
    return s.error().err == ESTALE ? -FI_ENOKEY : failure(s.error());
  }
  if (has_begun_access()) {
    const int rc = end_access();
    if (rc == -FI_EINPROGRESS) {
      rdma_.reset();  // the table is ours again
      copying_ = 0;
      return is_silent(peer);
    }
    if (rc != 0) return rc;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    auto piece =
        RemoteAperture::import(domain_.context(), table[i].cookie, 0, static_cast<std::int64_t>(peer.uid));
    if (!piece && piece.error().err == EAGAIN) return -FI_EINVAL;
    if (!piece) return piece.error().err == ESTALE ? -FI_ENOKEY : failure(piece.error());
    if (piece->size() != table[i].length) return -FI_EINVAL;
    region->pieces.push_back(std::move(*piece));
  }
  return 0;
}

// One copy, done when this returns, or a request to the peer's driver thread.
Status Transport::copy(RemoteAperture& aperture, bool write, std::uint64_t offset, std::byte* local,
                       std::size_t length) {
  Status status = write ? aperture.write(offset, local, length) : aperture.read(offset, local, length);
  if (status || status.error().err != EOPNOTSUPP) [[likely]]
    return status;
  // The kernel does not let us copy: the peer's driver thread does.
  if (auto s = aperture.check(); !s) return s;
  if (!rdma_) {
    auto queue = RdmaQueue::create(domain_.context(), kMostCopies);
    if (!queue) return queue.error();
    rdma_.emplace(std::move(*queue));
  }
  status =
      write ? rdma_->write(aperture, offset, local, length) : rdma_->read(aperture, offset, local, length);
  if (status) ++copying_;
  return status;
}

namespace {

// Why an access that had begun has failed.
int failure_of(int err) {
  switch (err) {
    case 0: return 0;
    case ESTALE: return -FI_ENOKEY;
    case ERANGE: return -FI_EINVAL;
    default: return failure(Error{err, "an RDMA request failed"});
  }
}

// Takes the completions that there are. True when there is none to come.
bool take_copies(RdmaQueue& queue, std::size_t* left, int* err) {
  RdmaCompletion done[16];
  while (*left > 0) {
    const std::size_t n = queue.poll(done);
    if (n == 0) return false;
    for (std::size_t i = 0; i < n; ++i) {
      if (*err == 0) *err = done[i].status;
    }
    *left -= n;
  }
  return true;
}

}  // namespace

int Transport::end_access() {
  if (copying_ == 0) return 0;
  const std::uint64_t deadline = deadline_after_ms(kPatienceMs);
  int err = 0;
  while (copying_ > 0) {
    const std::uint64_t now = monotonic_ns();
    if (now >= deadline) {
      if (take_copies(*rdma_, &copying_, &err)) break;
      copies_err_ = err;
      return -FI_EINPROGRESS;
    }
    RdmaCompletion done;
    const auto left = static_cast<std::int64_t>((deadline - now + 999'999) / 1'000'000);
    auto waited = rdma_->wait(std::span(&done, 1), left);
    if (waited) {
      --copying_;
      if (err == 0) err = done.status;
    } else if (waited.error().err != EINTR && waited.error().err != ETIMEDOUT) {
      rdma_.reset();
      copying_ = 0;
      return failure(waited.error());
    }
  }
  return failure_of(err);
}

void Transport::go_on_later(Endpoint& from, Peer& peer, const Sending& sending, SlowCopies copies,
                            std::vector<std::byte> bytes) {
  Operation& operation = make_operation(&from, peer, sending);
  operation.waits_for_answer = true;
  operation.answer = Op::kPut;
  operation.gathered = std::move(bytes);
  charge(operation, 1, true);
  copies.operation = &operation;
  keep_slow(peer, std::move(copies));
}

void Transport::keep_slow(Peer& peer, SlowCopies copies) {
  if (copies.err == 0) copies.err = copies_err_;
  peer.slow = std::make_unique<SlowCopies>(std::move(copies));
  peer.slow->queue = std::move(*rdma_);
  peer.slow->left = std::exchange(copying_, 0);
  rdma_.reset();
  slow_.push_back(&peer);
  domain_.look_soon();
}

bool Transport::look_after_slow() {
  bool moved = false;
  std::erase_if(slow_, [&](Peer* peer) {
    if (peer->slow && !take_copies(*peer->slow->queue, &peer->slow->left, &peer->slow->err)) return false;
    if (peer->slow) end_slow(*peer);
    moved = true;
    return true;
  });
  return moved;
}

void Transport::end_slow(Peer& peer) {
  const std::unique_ptr<SlowCopies> slow = std::move(peer.slow);
  const int rc = failure_of(slow->err);
  if (slow->operation == nullptr) {
    end_ours(peer, peer.accesses->front(), rc);
    peer.accesses->pop();
    return;
  }
  if (rc == 0 && slow->tells_owner) {
    (void)tell_owner(peer, slow->context, slow->write, slow->key, slow->address, slow->length,
                     slow->data ? &*slow->data : nullptr);
  }
  slow->operation->waits_for_answer = false;
  slow->operation->err = -rc;
  settle(*slow->operation);
}

Status Transport::copy_pieces(RemoteRegion& region, bool write, std::uint64_t offset, std::byte* local,
                              std::size_t length) {
  for (RemoteAperture& piece : region.pieces) {
    if (offset >= piece.size()) {
      offset -= piece.size();
      continue;
    }
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(length, piece.size() - offset));
    if (auto s = copy(piece, write, offset, local, n); !s) return s;
    local += n;
    length -= n;
    offset = 0;
    if (length == 0) return {};
  }
  return Error{ERANGE, "beyond the last piece of a region"};
}

int Transport::access(Peer& peer, bool write, std::uint64_t key, std::uint64_t address, std::byte* local,
                      std::size_t length) {
  if (int rc = connected(peer); rc != 0) return rc;
  if (length == 0) return 0;
  for (int attempt = 0;; ++attempt) {
    int rc = 0;
    RemoteRegion* region = region_of(peer, key, &rc);
    if (region == nullptr) return rc;
    const std::uint64_t offset = domain_.virtual_addresses() ? address - region->base : address;
    const Status status = region->pieces.empty() ? copy(region->aperture, write, offset, local, length)
                                                 : copy_pieces(*region, write, offset, local, length);
    if (status) return 0;
    FI_INFO(&g_provider, FI_LOG_EP_DATA, "%s of %zu bytes at 0x%llx of key 0x%llx (%llu bytes): %s\n",
            write ? "write" : "read", length, static_cast<unsigned long long>(offset),
            static_cast<unsigned long long>(key), static_cast<unsigned long long>(region->aperture.size()),
            status.error().message().c_str());
    const int err = status.error().err;
    if (attempt == 0 && (err == ESTALE || err == ERANGE || err == EACCES)) {
      peer.regions.erase(key);  // another region may have that key now, and be larger
      continue;
    }
    switch (err) {
      case ESTALE: return -FI_ENOKEY;
      case ERANGE: return -FI_EINVAL;
      default: return failure(status.error());
    }
  }
}

bool Transport::owner_listens(Peer& peer, std::uint64_t key) {
  auto it = peer.regions.find(key);
  return it != peer.regions.end() && it->second.tell_owner;
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
  answer(peer, &message, sizeof message);
  return 0;
}

// --- small accesses, at the initiator --------------------------------------------------------------

int Transport::start_small_access(Endpoint& from, Peer& to, const SmallTransfer& t) {
  if (!to.accesses) {
    to.accesses.reset(new (std::nothrow) SmallAccesses);
    if (!to.accesses) return -FI_EOPNOTSUPP;
  }
  SmallAccesses& accesses = *to.accesses;
  // Who makes many without reading a queue keeps peers waiting that do the same.
  if (accesses.direct > 0 || ++accesses.turn % kTurnsPerProgress == 0) progress();
  if (int rc = ready(to); rc != 0) return rc;
  if (accesses.direct > 0) {
    --accesses.direct;
    return -FI_EOPNOTSUPP;
  }
  if (!messages_->shares_messages(to.index)) {
    accesses.direct = kUnshared;  // a message now and then, that it may begin to poll for ours
  }
  const std::size_t extra = t.data != nullptr ? sizeof *t.data : 0;
  const std::size_t body = t.write ? extra + t.length : sizeof(GetRequest);
  const std::size_t total = sizeof(WireHeader) + sizeof(AccessWord) + body;
  if (!t.write && !may_ask(to, t.length + kAnswerCost)) return -FI_EAGAIN;
  if (accesses.full()) progress();
  Result<std::span<std::byte>> room = Error{EAGAIN, ""};
  if (!accesses.full()) room = messages_->reserve(to.index, total);
  if (!room) {
    if (room.error().err != EAGAIN) return failure(room.error());
    progress();
    return -FI_EAGAIN;
  }
  Sending sending;
  sending.context = t.program_context;
  sending.flags = FI_RMA | (t.write ? FI_WRITE : FI_READ);
  sending.completion = t.completion;
  sending.counter = t.counter;
  if (!accesses.listed) accessing_.push_back(&to);
  accesses.listed = true;
  Operation& operation = make_operation(&from, to, sending);
  operation.waits_for_answer = true;
  operation.answer = t.write ? Op::kPut : Op::kGetReply;
  WireHeader header;
  header.op = t.write ? Op::kPut : Op::kGet;
  header.flags = t.data != nullptr ? kHasData : 0;
  header.context = t.context;
  header.id = operation.id;
  header.tag = t.key;
  header.data = t.address;
  std::byte* at = room->data();
  std::memcpy(at, &header, sizeof header);
  auto* word = reinterpret_cast<std::atomic<AccessWord>*>(at + sizeof header);
  word->store(kAccessWaiting, std::memory_order_relaxed);  // relaxed: commit() publishes it
  at += sizeof header + sizeof(AccessWord);
  SmallAccess& access = accesses.push();
  if (t.write) {
    if (t.data != nullptr) std::memcpy(at, t.data, sizeof *t.data);
    gather(at + extra, t.local, t.local_count);
    access.bytes = at + extra;
  } else {
    const GetRequest request{t.length};
    std::memcpy(at, &request, sizeof request);
    access.bytes = nullptr;
    operation.results[0] = t.local[0];
    operation.result_count = 1;
    charge(operation, t.length + kAnswerCost, false);
  }
  messages_->commit(to.index, total);
  access.word = word;
  access.mark = messages_->sent_mark(to.index);
  access.operation = &operation;
  access.generation = operation.generation;
  access.key = t.key;
  access.address = t.address;
  access.length = t.length;
  access.atomics = to.atomics_sent;
  return 0;
}

// Takes the accesses that the peer has made from the list. True when there were any.
bool Transport::reap(Peer& peer) {
  SmallAccesses& accesses = *peer.accesses;
  if (peer.slow) [[unlikely]]
    return false;  // the one in front is being made
  const auto state = [&](const SmallAccess& a) {
    if (messages_->has_left(peer.index, a.mark)) return kAccessDone;
    // PAIR ofi.access: sees what the target has done with its memory before it said so
    return a.word->load(std::memory_order_acquire);
  };
  bool moved = false;
  // In order, so the last one says it of all; it is asked first as its line is the least likely to be fought
  // for.
  const bool all = !accesses.empty() && state(accesses.back()) == kAccessDone;
  while (!accesses.empty()) {
    SmallAccess& a = accesses.front();
    const AccessWord now = all ? kAccessDone : state(a);
    if (now == kAccessWaiting || now == kAccessTheirs) break;
    if (now == kAccessDone) {
      // A read is complete when its bytes have come.
      if (a.bytes != nullptr) finish(*a.operation, 0);
      accesses.next_direct = 0;
    } else {
      // Refused, or what no target writes.
      a.word->store(kAccessOurs, std::memory_order_relaxed);  // relaxed: to the target it is the same
      if (!make_ourselves(peer, a)) break;
    }
    accesses.pop();
    moved = true;
  }
  return moved;
}

// The access is ours: it is made here and now. False: as soon as the peer's driver thread answers.
bool Transport::make_ourselves(Peer& peer, SmallAccess& access) {
  Operation& operation = *access.operation;
  const bool waits = operation.live && operation.generation == access.generation;  // no answer has ended it
  int rc = 0;
  if (waits && access.bytes != nullptr) {
    rc = this->access(peer, true, access.key, access.address, access.bytes, access.length);
  } else if (waits && operation.owner != nullptr) {
    rc = this->access(peer, false, access.key, access.address,
                      static_cast<std::byte*>(operation.results[0].iov_base), access.length);
  }
  if (has_begun_access()) {
    const int ended = end_access();
    if (ended == -FI_EINPROGRESS) {
      SlowCopies copies;
      copies.err = -rc;
      keep_slow(peer, std::move(copies));
      return false;
    }
    if (rc == 0) rc = ended;
  } else if (rc == -FI_EAGAIN) {
    return false;
  }
  end_ours(peer, access, rc);
  return true;
}

void Transport::end_ours(Peer& peer, SmallAccess& access, int rc) {
  Operation& operation = *access.operation;
  const bool waits = operation.live && operation.generation == access.generation;
  // PAIR ofi.access: the target goes on to what is behind it
  access.word->store(rc == 0 ? kAccessDone : kAccessFailed, std::memory_order_release);
  messages_->nudge(peer.index);  // it may have held the message and gone to sleep
  if (waits) finish(operation, -rc);
}

// Makes what the peer has not come to. What waits for atomic operations must not overtake them.
Transport::Left Transport::take_back(Peer& peer) {
  SmallAccesses& accesses = *peer.accesses;
  for (;;) {
    reap(peer);
    if (accesses.empty()) return Left::kNone;
    SmallAccess& a = accesses.front();
    if (peer.atomics_sent - peer.atomics < a.atomics) return Left::kBehindAtomics;
    AccessWord waiting = kAccessWaiting;
    // PAIR ofi.access: one of the two sides takes it
    if (a.word->compare_exchange_strong(waiting, kAccessOurs, std::memory_order_acq_rel)) {
      if (accesses.next_direct < kMostDirect) {
        accesses.next_direct = std::max(kFirstDirect, accesses.next_direct * 2);
      }
      accesses.direct = accesses.next_direct;
      if (!make_ourselves(peer, a)) return Left::kTheirs;
      accesses.pop();
    } else if (waiting == kAccessTheirs || waiting == kAccessOurs) {
      return Left::kTheirs;  // ours: its driver thread has yet to answer, or the peer writes nonsense
    }
  }
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
    } else if (++accesses.looks % kLooksPerClock == 0) {
      const std::uint64_t now = monotonic_ns();
      if (accesses.since == 0) {
        accesses.since = now;
      } else if (now - accesses.since > kPatienceNs) {
        const std::uint64_t first = accesses.first;
        take_back(*peer);
        moved = accesses.first != first || moved;
      }
    }
    return false;
  });
  return moved;
}

Transport::Left Transport::finish_accesses(Peer& peer) {
  return peer.accesses ? take_back(peer) : Left::kNone;
}

Transport::Left Transport::finish_accesses() {
  Left left = Left::kNone;
  for (Peer* peer : accessing_) left = std::max(left, take_back(*peer));
  return left;
}

// --- small accesses, at the target -----------------------------------------------------------------

Transport::Taken Transport::arrived_access(PeerIndex from, Peer& peer, const WireHeader& header,
                                           std::span<const std::byte> bytes) {
  auto* word = messages_->shared_word(sizeof(WireHeader));
  AccessWord unused;
  if (word == nullptr || !take_front(bytes, &unused)) return Taken::kNo;
  std::uint64_t data = 0;
  const bool has_data = (header.flags & kHasData) != 0;
  if (has_data && !take_front(bytes, &data)) return Taken::kNo;
  AccessWord state = kAccessWaiting;
  // PAIR ofi.access: one of the two sides takes it; what the initiator has done is seen
  if (word->compare_exchange_strong(state, kAccessTheirs, std::memory_order_acq_rel)) {
    state = serve_access(peer, header, bytes) ? kAccessDone : kAccessRefused;
    // PAIR ofi.access: our memory is as the initiator wants it
    word->store(state, std::memory_order_release);
  }
  if ((state == kAccessOurs || state == kAccessRefused) && !messages_->has_gone(from)) {
    held_.push_back({from, word});
    messages_->hold();
    return Taken::kDropped;
  }
  if (state != kAccessDone) return Taken::kNo;
  const bool write = header.op == Op::kPut;
  std::uint64_t length = bytes.size();
  if (GetRequest request; !write && take_front(bytes, &request)) length = request.length;
  if (has_data || domain_.rma_events()) {
    note_access(peer, header, write ? FI_REMOTE_WRITE : FI_REMOTE_READ, length, has_data ? &data : nullptr);
  }
  return Taken::kNo;
}

// False: there is no such memory, or it does not allow that.
bool Transport::serve_access(Peer& peer, const WireHeader& header, std::span<const std::byte> bytes) {
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
  answer(peer, &reply, sizeof reply.header + request.length);
  return true;
}

void Transport::resume_held() {
  std::erase_if(held_, [this](const HeldMessage& held) {
    bool waits = false;
    if (held.word == nullptr) {
      const Peer* peer = by_index_[held.from];
      waits = peer != nullptr && (peer->answer_bytes > kMostKept / 2 || peer->long_atomic != nullptr);
    } else {
      // PAIR ofi.access: sees what the initiator has done
      const AccessWord state = held.word->load(std::memory_order_acquire);
      waits = state == kAccessOurs || state == kAccessRefused;
    }
    if (waits && !messages_->has_gone(held.from)) return false;
    messages_->resume(held.from);
    return true;
  });
}

// --- notices ---------------------------------------------------------------------------------------

void Transport::note_access(Peer& peer, const WireHeader& header, std::uint64_t what, std::uint64_t length,
                            const std::uint64_t* data) {
  if (MemoryRegion* region = domain_.find_region(header.tag)) region->note_access(what);
  Endpoint* endpoint = header.context < endpoints_.size() ? endpoints_[header.context] : nullptr;
  if (endpoint == nullptr) return;
  endpoint->note_access(what);
  if (data == nullptr || endpoint->receive_cq() == nullptr) return;
  Completion completion;
  completion.flags = FI_RMA | what | FI_REMOTE_CQ_DATA;
  completion.length = length;
  completion.data = *data;
  if (endpoint->tells_source()) completion.source = address_of(peer);
  endpoint->receive_cq()->write(completion);
}

void Transport::arrived_notice(Peer& peer, const WireHeader& header, std::span<const std::byte> bytes) {
  RmaNotice notice;
  if (!take_front(bytes, &notice)) return;
  note_access(peer, header, notice.read == 1 ? FI_REMOTE_READ : FI_REMOTE_WRITE, notice.length,
              (header.flags & kHasData) != 0 ? &header.data : nullptr);
}

}  // namespace clan::ofi

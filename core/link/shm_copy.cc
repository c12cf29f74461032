// The link on one host: copies of memory that is not mapped, by us or by the peer's driver.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "clan/detail/dekker.h"
#include "clan/detail/log.h"
#include "clan/detail/words.h"
#include "link/shm_link.h"

namespace clan::link {

using nic::AccessKind;
using nic::RemoteHandle;
using nic::Transfer;
using nic::TransferResult;

namespace {

// Copies from here on are offered to the peer's processor as well.
constexpr std::uint64_t kTogetherBytes = 64 * 1024;
/// chunks of a peer's copy in one go: it may begin another while we help
constexpr int kMostHelped = 64;
/// how a helper's last chunks are waited for
constexpr unsigned kHelperPauses = 4096, kHelperYields = 4096, kHelperNapUs = 500;
constexpr int kMostNapsAtEnd = 2000;  ///< of kHelperNapUs, for copies when the link is shut down
constexpr std::size_t kStagingBytes = 512 * 1024;  ///< the longest chunk of an RDMA driver

}  // namespace

// Copies between our memory and the peer's. 0 or an errno value.
int ShmLink::copy_range(RdmaOp op, std::byte* local_address, std::uint64_t remote_address,
                        std::uint64_t length) const {
  std::uint64_t moved = 0;
  while (moved < length) {
    iovec local{local_address + moved, length - moved};
    iovec remote{reinterpret_cast<void*>(remote_address + moved), length - moved};
    ssize_t n = op == RdmaOp::kWrite ? ::process_vm_writev(remote_pid(), &local, 1, &remote, 1, 0)
                                     : ::process_vm_readv(remote_pid(), &local, 1, &remote, 1, 0);
    if (n == 0) return EIO;
    if (n < 0) return errno == ESRCH ? ECONNRESET : errno;
    moved += static_cast<std::uint64_t>(n);
  }
  return 0;
}

namespace {

// Claims the next chunk of whatever job there is; false: none. Its claimer holds the job's fields
// until the chunk is counted as done. The sequence in the word tells successive jobs apart.
bool claim_chunk(shm::CopyJob& job, std::uint32_t* chunk) {
  // PAIR job.claim: sees the fields the initiator stored before it started the job
  std::uint64_t seen = words::load_acquire(job.claim);
  for (;;) {
    const auto next = static_cast<std::uint32_t>(seen & 0xffff);
    if (next >= (seen >> 16 & 0xffff)) return false;
    if (words::cas(job.claim, seen, seen + 1)) {
      *chunk = next;
      return true;
    }
  }
}

}  // namespace

// The same, but the peer's processor may take chunks too, if it happens to be polling.
int ShmLink::copy_together(const Transfer& t, std::uint64_t base) {
  const std::uint64_t my_bit = std::uint64_t{1} << (peer_.my_slot % 64);
  // relaxed: a hint about whether it is worth asking
  if ((image_.signals->help_wanted.load(std::memory_order_relaxed) & my_bit) != 0) {
    // The peer has not even looked since the last job: it is not polling.
    return copy_range(t.op, t.local, base + t.remote_offset, t.length);
  }
  shm::CopyJob& job = image_.signals->jobs[peer_.my_slot];
  const std::uint64_t step = shm::copy_chunk_bytes(t.length);
  const auto chunks = static_cast<std::uint32_t>((t.length + step - 1) / step);
  if (chunks > shm::kMaxCopyChunks)
    return copy_range(t.op, t.local, base + t.remote_offset, t.length);
  const std::uint64_t sequence = ++job_sequence_;
  auto relaxed = std::memory_order_relaxed;  // published by claim
  job.done.store(0, relaxed);
  job.err.store(0, relaxed);
  job.address.store(reinterpret_cast<std::uint64_t>(t.local), relaxed);
  job.offset.store(t.remote_offset, relaxed);
  job.length.store(t.length, relaxed);
  job.aperture.store(t.remote->aperture, relaxed);
  job.generation.store(t.remote->generation_wanted, relaxed);
  job.op.store(static_cast<std::uint32_t>(t.op), relaxed);
  // PAIR job.claim: publishes the fields to claim_chunk
  words::store_release(job.claim, sequence << 32 | std::uint64_t{chunks} << 16);
  // PAIR job.help: publishes the job to help_one
  words::set_bits(image_.signals->help_wanted, my_bit);
  int err = 0;
  std::uint32_t mine = 0;
  std::uint32_t chunk;
  while (claim_chunk(job, &chunk)) {
    const std::uint64_t at = chunk * step;
    if (at >= t.length) return EPROTO;  // the peer has scribbled over the claim
    if (err == 0) {
      err = copy_range(t.op, t.local + at, base + t.remote_offset + at,
                       std::min(step, t.length - at));
    }
    ++mine;
  }
  offers_.ended(mine < chunks);
  // The helper is copying its chunks; only death can stop it. A stopped one (SIGSTOP, a debugger)
  // is waited for: it would write to reused memory later.
  // PAIR job.done: sees the bytes the helper copied
  for (unsigned spins = 0; words::load_acquire(job.done) + mine < chunks; ++spins) {
    if (!alive()) return ECONNRESET;
    if (spins < kHelperPauses) {
      cpu_pause();
    } else if (spins < kHelperPauses + kHelperYields) {
      sched_yield();
    } else {
      ::usleep(kHelperNapUs);
    }
  }
  if (err != 0 || job.err.load(std::memory_order_relaxed) == 0) return err;
  // The peer could not do its part (its sandbox may forbid what ours allows): we can.
  return copy_range(t.op, t.local, base + t.remote_offset, t.length);
}

bool ShmLink::wants_help() {
  const shm::CopyJob& job = nic_.image().signals->jobs[peer_.peer_slot];
  // relaxed: claim_chunk() acquires
  const std::uint64_t claim = job.claim.load(std::memory_order_relaxed);
  return (claim & 0xffff) < (claim >> 16 & 0xffff);
}

// A chunk or more of a copy that the peer has announced in our NIC.
bool ShmLink::help() {
  shm::CopyJob& job = nic_.image().signals->jobs[peer_.peer_slot];
  bool helped = false;
  std::uint32_t chunk;
  for (int i = 0; i < kMostHelped && claim_chunk(job, &chunk); ++i) {
    // Every field is the peer's word: our side must lie in an aperture it has a right to.
    const auto op = static_cast<RdmaOp>(job.op.load(std::memory_order_relaxed));
    const std::uint64_t length = job.length.load(std::memory_order_relaxed);
    const std::uint64_t step = shm::copy_chunk_bytes(length);
    const std::uint64_t at = chunk * step;
    int err = EPROTO;
    if (at < length) {
      const std::uint64_t bytes = std::min(step, length - at);
      const bool peer_writes = op == RdmaOp::kWrite;
      auto local = nic_.resolve(job.aperture.load(std::memory_order_relaxed),
                                job.generation.load(std::memory_order_relaxed),
                                job.offset.load(std::memory_order_relaxed) + at, bytes,
                                peer_writes ? Rights::kWrite : Rights::kRead);
      err = local ? copy_range(peer_writes ? RdmaOp::kRead : RdmaOp::kWrite, local.get(),
                               job.address.load(std::memory_order_relaxed) + at, bytes)
                  : ESTALE;
    }
    if (err != 0) job.err.store(static_cast<std::uint32_t>(err), std::memory_order_relaxed);
    // PAIR job.done: publishes the bytes to the initiator
    words::add(job.done, 1);
    helped = true;
  }
  return helped;
}

int ShmLink::copy_directly(const Transfer& t) {
  const shm::ApertureEntry& entry = *entry_of(*t.remote);
  const std::uint32_t lane = claim_lane();
  auto& epoch = image_.signals->activity[peer_.my_slot].epoch[lane];
  // PAIR dma.epoch: announced before the generation is checked; Nic::revoke waits for it
  const std::uint64_t mine = epoch.load(std::memory_order_relaxed) | 1;
  dekker::announce(epoch, mine);
  int err = 0;
  if (dekker::load(ending_)) {  // PAIR dma.ending: behind the lane, which shut_down() checks
    err = ECONNRESET;
    // PAIR aperture.dma: a revocation that we miss here sees our announcement and waits
  } else if (static_cast<std::uint32_t>(dekker::load(entry.generation)) !=
             t.remote->generation_wanted) {
    err = ESTALE;
  } else {
    std::uint64_t base = entry.base.load(std::memory_order_relaxed);
    std::unique_lock job(job_mutex_, std::defer_lock);
    const bool together = t.length >= kTogetherBytes && job.try_lock() && offers_.next();
    err = together ? copy_together(t, base)
                   : copy_range(t.op, t.local, base + t.remote_offset, t.length);
  }
  // PAIR dma.epoch: the copy is over
  dekker::announce(epoch, mine + 1);
  // PAIR dma.lane: the next thread under this lane sees our epoch
  words::clear_bits(lanes_in_use_, 1u << lane);
  return err;
}

// A lane nobody else copies under. Waits while all are taken, which is for the length of a copy.
std::uint32_t ShmLink::claim_lane() {
  // relaxed: the exchange decides
  std::uint32_t taken = lanes_in_use_.load(std::memory_order_relaxed);
  for (;;) {
    const auto lane = static_cast<std::uint32_t>(std::countr_one(taken));
    if (lane >= shm::kDmaLanes) {
      sched_yield();
      taken = lanes_in_use_.load(std::memory_order_relaxed);  // relaxed: the exchange decides
      continue;
    }
    // PAIR dma.lane: sees the epoch its last user left; and before the check of ending_
    if (dekker::cas(lanes_in_use_, taken, taken | 1u << lane)) {
      return lane;
    }
  }
}

// Waits for our threads' copies: once the peer sees the link go, it may reuse the memory. Copies
// that wait for a helper of the peer's may take for ever.
void ShmLink::wait_for_copies() {
  // PAIR dma.ending: before the check of the lanes; a copy that takes one later sees it
  dekker::announce(ending_, true);
  // PAIR dma.lane: the copies are over
  for (int nap = 0; dekker::load(lanes_in_use_) != 0 && nap < kMostNapsAtEnd; ++nap)
    ::usleep(kHelperNapUs);
}

TransferResult ShmLink::transfer(const Transfer& t) {
  auto failed = [](int err) { return TransferResult{TransferResult::Kind::kError, err}; };
  if (!alive()) return failed(ECONNRESET);
  const RemoteHandle& r = *t.remote;
  const bool write = t.op == RdmaOp::kWrite;
  if (t.remote_offset > r.length || t.length > r.length - t.remote_offset) return failed(ERANGE);
  if (!includes(r.rights, write ? Rights::kWrite : Rights::kRead)) return failed(EACCES);
  if (r.mapped != nullptr) {
    // PAIR aperture.generation: sees the entry that the owner published
    if (static_cast<std::uint32_t>(words::load_acquire(*r.generation)) != r.generation_wanted) {
      return failed(ESTALE);
    }
    if (write && t.length > 0) std::memcpy(r.mapped + t.remote_offset, t.local, t.length);
    if (!write && t.length > 0) std::memcpy(t.local, r.mapped + t.remote_offset, t.length);
  } else if (direct_copy_) {
    if (int err = copy_directly(t); err != 0) return failed(err);
  } else {
    return copy_by_peer(t);
  }
  shm::AsymmetricFence::full();
  nic::match_tripwires(image_, r.aperture, t.remote_offset, t.length,
                       write ? AccessKind::kWrite : AccessKind::kRead);
  return {};
}

Status ShmLink::move_now(const Transfer& t) {
  if (t.remote->mapped == nullptr && !direct_copy_)
    return Error{EOPNOTSUPP, "PIO to or from memory that only its owner can copy; use RDMA"};
  const auto result = transfer(t);
  if (result.kind == TransferResult::Kind::kDone) return {};
  return Error{result.err, "PIO to or from a remote aperture"};
}

Status ShmLink::put(const RemoteHandle& handle, std::uint64_t offset,
                    std::span<const std::byte> bytes, nic::PutOrder) {
  return move_now(
      {RdmaOp::kWrite, &handle, offset, const_cast<std::byte*>(bytes.data()), bytes.size(), 0});
}

Status ShmLink::get(const RemoteHandle& handle, std::uint64_t offset, std::span<std::byte> bytes) {
  return move_now({RdmaOp::kRead, &handle, offset, bytes.data(), bytes.size(), 0});
}

Status ShmLink::after_access(const RemoteHandle& handle, std::uint64_t offset, std::uint64_t length,
                             AccessKind kind) {
  if (!alive()) return Error{ECONNRESET, "the peer is gone"};
  // PAIR aperture.generation: sees the entry that the owner published
  if (static_cast<std::uint32_t>(words::load_acquire(entry_of(handle)->generation)) !=
      handle.generation_wanted) {
    return Error{ESTALE, "the aperture has been revoked"};
  }
  nic::match_tripwires(image_, handle.aperture, offset, length, kind);
  return {};
}

bool ShmLink::owner_waits(const RemoteHandle& handle) const {
  return nic::is_any_armed(image_, handle.aperture);
}

// --- copies by the peer's driver, where process_vm_* is forbidden --------------------------------

// The memory is the link's own as long as it is up.
Status ShmLink::make_staging() {
  auto block = nic::MemoryBlock::create(kStagingBytes);
  if (!block) return block.error();
  auto cookie =
      nic_.export_aperture({(*block)->data(), (*block)->size(), Rights::kReadWrite, *block});
  if (!cookie) return cookie.error();
  auto granted = grant(*cookie);
  {
    std::lock_guard lock(mutex_);
    if (granted && alive() && !staging_) {
      staging_ = *block;
      staging_cookie_ = *cookie;
      return {};
    }
  }
  // not granted, the link has gone down, or another thread was faster
  nic_.retire(cookie->aperture);
  return granted;
}

// The slow path, so that a forbidden kernel feature is no error: one at a time per link, through
// our staging memory, which the peer maps.
TransferResult ShmLink::copy_by_peer(const Transfer& t) {
  auto failed = [](int err) { return TransferResult{TransferResult::Kind::kError, err}; };
  std::unique_lock lock(mutex_);
  if (!staging_) {
    lock.unlock();
    if (auto made = make_staging(); !made) return failed(made.error().err);
    lock.lock();
    if (!staging_) return failed(ECONNRESET);
  }
  if (copy_request_ != 0) return {TransferResult::Kind::kBusy, EAGAIN};
  if (t.length > kStagingBytes) return failed(EMSGSIZE);
  if (t.op == RdmaOp::kWrite && t.length > 0) std::memcpy(staging_->data(), t.local, t.length);
  const auto grant_of = nic_.check_cookie(staging_cookie_);
  ControlMessage message{.type = ControlType::kCopy,
                         .request = next_request_++,
                         .memory_id = grant_of.ok() ? grant_of->memory_id : 0,
                         .offset = t.remote_offset,
                         .length = t.length,
                         .flags = static_cast<std::uint32_t>(t.op)};
  message.cookie.node = peer_.node;
  message.cookie.key = t.remote->key;
  message.cookie.length = t.remote->length;
  message.cookie.aperture = t.remote->aperture;
  message.cookie.generation = t.remote->generation_wanted;
  message.cookie.rights = t.remote->rights;
  copy_ = t;
  copy_request_ = message.request;
  lock.unlock();
  if (auto s = send(message, {}); !s) {
    lock.lock();
    copy_request_ = 0;
    return failed(s.error().err);
  }
  return {TransferResult::Kind::kPending, 0};
}

void ShmLink::serve_copy(const ControlMessage& message) {
  ControlMessage reply{.type = ControlType::kCopyDone, .request = message.request};
  const bool write = message.flags == static_cast<std::uint32_t>(RdmaOp::kWrite);
  {
    std::lock_guard lock(mutex_);
    // The key is the permission: anyone can read apertures and generations. Check it first: with a
    // Nic::Landing nobody may take the NIC's mutex, under which revoke() waits for landings.
    const bool permitted = nic_.check_cookie(message.cookie).ok();
    auto target = nic_.resolve(message.cookie.aperture, message.cookie.generation, message.offset,
                               message.length, write ? Rights::kWrite : Rights::kRead);
    auto staging = imported_.find(message.memory_id);
    if (!target || !permitted) {
      reply.err = ESTALE;
    } else if (staging == imported_.end() || staging->second.read_only ||
               message.length > staging->second.mapping.size()) {
      reply.err = EPROTO;
    } else if (write) {
      std::memcpy(target.get(), staging->second.mapping.data(), message.length);
    } else {
      std::memcpy(staging->second.mapping.data(), target.get(), message.length);
    }
  }
  if (reply.err == 0) {
    nic::match_tripwires(nic_.image(), message.cookie.aperture, message.offset, message.length,
                         write ? AccessKind::kWrite : AccessKind::kRead);
  }
  (void)send(reply, {});
}

void ShmLink::cancel(std::uint64_t token) {
  std::lock_guard lock(mutex_);
  // The peer goes on copying to or from our staging memory; our caller's memory is left alone.
  if (copy_request_ != 0 && copy_.token == token) copy_.local = nullptr;
}

}  // namespace clan::link

#include "link/shm_link.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>

#include "clan/log.h"

namespace clan::link {

using nic::AccessKind;
using nic::RemoteHandle;
using nic::Transfer;
using nic::TransferResult;

namespace {

// Copies from here on are offered to the peer's processor as well.
constexpr std::uint64_t kTogetherBytes = 64 * 1024;
constexpr int kMostHelped = 64;  ///< chunks of a peer's copy in one go: it may begin another while we help
constexpr std::size_t kStagingBytes = 512 * 1024;  ///< the longest chunk of an RDMA driver
constexpr std::size_t kMostUnsent = 65536;    ///< messages kept for a peer that does not read
constexpr std::size_t kMostUnsentFds = 256;   ///< of these, with a descriptor
constexpr std::size_t kMostImported = 16384;  ///< memories of one peer: mappings are scarce
// Nor may a peer fill our address space with memory that nobody has.
std::uint64_t most_imported_bytes() {
  static const auto pages = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES));
  return 2 * pages * kPageSize;
}
constexpr auto kAnswerTimeout = std::chrono::seconds(10);

// Does the kernel let us read that process? Its NIC header says which word must be where.
bool probe_direct_copy(pid_t pid, const shm::NicHeader& header) {
  std::uint64_t value = 0;
  iovec local{&value, sizeof value};
  iovec remote{reinterpret_cast<void*>(header.cma_probe_address), sizeof value};
  return pid > 0 &&
         ::process_vm_readv(pid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(sizeof value) &&
         value == header.cma_probe_value;
}

}  // namespace

ShmLink::ShmLink(ShmPeer peer, nic::Nic& nic, nic::LinkSink& sink, Reactor& reactor, Options options)
    : peer_(std::move(peer)), nic_(nic), sink_(sink), reactor_(reactor) {
  auto* tables = reinterpret_cast<const shm::NicTables*>(peer_.tables.data());
  image_ = {tables, reinterpret_cast<shm::NicSignals*>(peer_.signals.data()), this};
  settled_.store(!options.accepted, std::memory_order_relaxed);  // relaxed: nobody knows us yet
  direct_copy_ = options.direct_copy && probe_direct_copy(peer_.credentials.pid, tables->header);
  light_fence_ = (tables->header.flags & shm::kNicFences) != 0 && shm::AsymmetricFence::register_process();
}

ShmLink::~ShmLink() { leave_nic(); }

// What the link holds in our NIC. Later the NIC may be gone.
void ShmLink::leave_nic() {
  if (!slot_held_.exchange(false)) return;
  nic_.remove_peer_slot(peer_.peer_slot);
  std::unique_lock lock(mutex_);
  const bool staged = staging_ != nullptr;
  lock.unlock();
  if (staged) nic_.retire(staging_cookie_.aperture);
}

Status ShmLink::start() { return reactor_.add(peer_.socket.get(), shared_from_this()); }

nic::LinkCapabilities ShmLink::capabilities() const {
  nic::LinkCapabilities c;
  c.mapped = true;
  c.direct_copy = direct_copy_;
  c.name = "shm";
  return c;
}

// At most one descriptor. ENOBUFS: the peer does not read.
Status ShmLink::send(const ControlMessage& message, std::span<const int> fds, bool discard_when_full) {
  if (!alive()) return Error{ECONNRESET, "the peer is gone"};
  std::lock_guard lock(send_mutex_);
  if (unsent_.empty()) {
    auto s = send_datagram(peer_.socket.get(), std::as_bytes(std::span(&message, 1)), fds, false);
    if (!s && s.error().err == EPIPE) return Error{ECONNRESET, "the peer is gone"};
    if (s || (s.error().err != EAGAIN && s.error().err != ENOBUFS)) return s;
  }
  if (discard_when_full || unsent_.size() >= kMostUnsent) {
    return Error{ENOBUFS, "the peer's queue is full; message discarded"};
  }
  Unsent kept{message, Fd()};
  if (!fds.empty()) {
    if (unsent_fds_ >= kMostUnsentFds) return Error{ENOBUFS, "the peer does not take its descriptors"};
    auto copy = duplicate(fds[0]);
    if (!copy) return copy.error();
    kept.fd = std::move(*copy);
    ++unsent_fds_;
  }
  unsent_.push_back(std::move(kept));
  if (unsent_.size() == 1) reactor_.watch_output(peer_.socket.get(), true);
  return {};
}

// Driver thread: the socket has room again.
void ShmLink::flush() {
  std::lock_guard lock(send_mutex_);
  if (unsent_.empty()) return;
  while (!unsent_.empty()) {
    const Unsent& next = unsent_.front();
    const int fd = next.fd.get();
    auto s = send_datagram(peer_.socket.get(), std::as_bytes(std::span(&next.message, 1)),
                           fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>(), false);
    if (!s && (s.error().err == EAGAIN || s.error().err == ENOBUFS)) return;
    if (!s) {
      unsent_.clear();  // the peer is gone; its end-of-file is on the way
      unsent_fds_ = 0;
      break;
    }
    if (fd >= 0) --unsent_fds_;
    unsent_.pop_front();
  }
  reactor_.watch_output(peer_.socket.get(), false);
}

void ShmLink::misbehaved(const char* what) {
  CLAN_WARN("peer %d %s; link reset", static_cast<int>(remote_pid()), what);
  sink_.on_misbehaviour(shared_from_this());
  go_down();
}

// --- import and grant ---------------------------------------------------------------------------

const shm::ApertureEntry* ShmLink::entry_of(const RemoteHandle& handle) const {
  return &image_.tables->apertures[handle.aperture % shm::kMaxApertures];
}

// The cookie against the peer's table. EAGAIN: right, but its memory is not mapped here yet.
Result<RemoteHandle> ShmLink::handle_for(const RdmaCookie& cookie) {
  if (cookie.node != peer_.node || cookie.aperture >= shm::kMaxApertures) {
    return Error{ESTALE, "RDMA cookie of another node"};
  }
  const shm::ApertureEntry& entry = image_.tables->apertures[cookie.aperture];
  // PAIR aperture.generation: sees the entry published by Nic::export_aperture
  auto generation = static_cast<std::uint32_t>(entry.generation.load(std::memory_order_acquire));
  if (generation != cookie.generation || (generation & 1) == 0) {
    return Error{ESTALE, "RDMA cookie of a revoked aperture"};
  }
  if (entry.key_image.load(std::memory_order_relaxed) != nic::key_image(cookie)) {
    return Error{EACCES, "RDMA cookie with a wrong key"};
  }
  RemoteHandle handle;
  handle.armed = &entry.armed;
  handle.generation = &entry.generation;
  handle.length = cookie.length;
  handle.aperture = cookie.aperture;
  handle.generation_wanted = cookie.generation;
  handle.rights = cookie.rights;
  handle.light_fence = light_fence_;
  handle.key = cookie.key;
  handle.memory_id = entry.memory.load(std::memory_order_relaxed);
  if (handle.memory_id == 0) return handle;
  std::uint64_t offset = entry.memory_offset.load(std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  auto it = imported_.find(handle.memory_id);
  if (it == imported_.end()) return Error{EAGAIN, "memory not mapped yet"};
  std::size_t size = it->second.mapping.size();
  if (offset > size || cookie.length > size - offset) {
    return Error{EPROTO, "the peer's aperture reaches beyond its memory"};
  }
  if (it->second.read_only && includes(cookie.rights, Rights::kWrite)) {
    return Error{EPROTO, "the peer's memory is mapped read-only"};
  }
  handle.mapped = it->second.mapping.data() + offset;
  ++it->second.references;
  return handle;
}

Result<RemoteHandle> ShmLink::import(const RdmaCookie& cookie, bool may_wait) {
  if (!alive()) return Error{ECONNRESET, "the peer is gone"};
  auto handle = handle_for(cookie);
  if (handle.ok() || handle.error().err != EAGAIN || !may_wait) return handle;
  ControlMessage message;
  message.type = ControlType::kImport;
  message.cookie = cookie;
  auto answer = ask(message);
  if (!answer) return answer.error();
  if (answer->err == EMFILE) {
    return Error{EMFILE, "no file descriptor is left to import an aperture: raise the limit (ulimit -n)"};
  }
  if (answer->err != 0) return Error{answer->err, "the owner of the aperture refused the import"};
  handle = handle_for(cookie);
  if (handle.ok() || handle.error().err != EAGAIN) return handle;
  return Error{ENOMEM, "the aperture's memory could not be mapped here"};
}

void ShmLink::release(const RemoteHandle& handle) {
  if (handle.memory_id == 0 || handle.mapped == nullptr) return;
  Mapping gone;
  std::lock_guard lock(mutex_);
  auto it = imported_.find(handle.memory_id);
  if (it != imported_.end() && --it->second.references <= 0 && !it->second.granted) {
    imported_bytes_ -= it->second.mapping.size();
    gone = std::move(it->second.mapping);
    imported_.erase(it);
  }
}

Status ShmLink::grant(const RdmaCookie& cookie) {
  auto grant = nic_.check_cookie(cookie);
  if (!grant) return grant.error();
  if (grant->memory_id == 0) return {};
  // Held until it is sent: whoever finds the memory granted may mention it in his next message.
  std::lock_guard lock(mutex_);
  auto at = std::lower_bound(granted_.begin(), granted_.end(), grant->memory_id);
  if (at != granted_.end() && *at == grant->memory_id) return {};
  ControlMessage message;
  message.type = ControlType::kMemory;
  message.memory_id = grant->memory_id;
  message.memory_bytes = grant->memory_bytes;
  message.flags = grant->read_only ? kMemoryReadOnly : 0;
  int fd = grant->memfd;
  if (auto s = send(message, {&fd, 1}); !s) return s;
  granted_.insert(at, grant->memory_id);
  return {};
}

// --- requests to the peer's driver --------------------------------------------------------------

Result<ShmLink::Answer> ShmLink::ask(ControlMessage message) {
  if (reactor_.on_reactor_thread()) return Error{EDEADLK, "the driver thread cannot wait for itself"};
  std::unique_lock lock(mutex_);
  const std::uint64_t request = next_request_++;
  message.request = request;
  answers_[request] = {};
  lock.unlock();
  Status sent = send(message, {});
  lock.lock();
  if (sent) {
    answered_.wait_for(lock, kAnswerTimeout, [&] { return answers_[request].done || !alive(); });
  }
  Answer answer = answers_[request];
  answers_.erase(request);
  if (!sent) return sent.error();
  if (answer.done) return answer;
  if (!alive()) return Error{ECONNRESET, "the peer went away"};
  return Error{ETIMEDOUT, "the peer's driver did not answer within 10 s"};
}

void ShmLink::serve_import(const ControlMessage& message) {
  ControlMessage reply;
  reply.type = ControlType::kImportReply;
  reply.request = message.request;
  auto grant = nic_.check_cookie(message.cookie);
  if (!grant) {
    reply.err = grant.error().err;
    (void)send(reply, {});
    return;
  }
  reply.memory_id = grant->memory_id;
  reply.memory_bytes = grant->memory_bytes;
  reply.flags = grant->read_only ? kMemoryReadOnly : 0;
  int fd = grant->memfd;
  (void)send(reply, fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>());
}

void ShmLink::accept_memory(const ControlMessage& message, Datagram& datagram) {
  if (datagram.fd_count != 1 || message.memory_id == 0) return;
  bool read_only = (message.flags & kMemoryReadOnly) != 0;
  std::lock_guard lock(mutex_);
  if (imported_.contains(message.memory_id)) return;
  if (imported_.size() >= kMostImported || message.memory_bytes > most_imported_bytes() - imported_bytes_) {
    CLAN_INFO("memory of peer %d not mapped: it shares more than this machine has",
              static_cast<int>(remote_pid()));
    return;
  }
  auto mapping = Mapping::map(datagram.fds[0].get(), message.memory_bytes,
                              read_only ? Mapping::Access::kRead : Mapping::Access::kReadWrite);
  if (!mapping) {
    CLAN_WARN("memory of peer %d: %s", static_cast<int>(remote_pid()),
              mapping.error().message().c_str());
    return;
  }
  imported_bytes_ += mapping->size();
  imported_.emplace(message.memory_id, Imported{std::move(*mapping), 0, read_only,
                                                message.type == ControlType::kMemory});
}

// --- access to memory that is not mapped ---------------------------------------------------------

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

// The next chunk of whatever job is there, or false when all are claimed. Who has claimed a chunk holds the
// job: its fields stay until that chunk is counted as done. All of the word is compared, so a job that
// ends and another that begins in between are told apart by the sequence.
bool claim_chunk(shm::CopyJob& job, std::uint32_t* chunk) {
  // PAIR job.claim: sees the fields the initiator stored before it started the job
  std::uint64_t seen = job.claim.load(std::memory_order_acquire);
  for (;;) {
    const auto next = static_cast<std::uint32_t>(seen & 0xffff);
    if (next >= (seen >> 16 & 0xffff)) return false;
    if (job.claim.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) {
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
  if (chunks > shm::kMaxCopyChunks) return copy_range(t.op, t.local, base + t.remote_offset, t.length);
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
  job.claim.store(sequence << 32 | std::uint64_t{chunks} << 16, std::memory_order_release);
  image_.signals->help_wanted.fetch_or(my_bit, std::memory_order_release);
  int err = 0;
  std::uint32_t mine = 0;
  std::uint32_t chunk;
  while (claim_chunk(job, &chunk)) {
    const std::uint64_t at = chunk * step;
    if (at >= t.length) return EPROTO;  // the peer has scribbled over the claim
    if (err == 0) {
      err = copy_range(t.op, t.local + at, base + t.remote_offset + at, std::min(step, t.length - at));
    }
    ++mine;
  }
  // The helper's chunks: it has claimed them and is copying; only its death can keep it from finishing.
  // PAIR job.done: sees the bytes the helper copied
  for (unsigned spins = 0; job.done.load(std::memory_order_acquire) + mine < chunks; ++spins) {
    if (!alive()) return ECONNRESET;
    if (spins < 4096) {
      cpu_pause();
    } else {
      sched_yield();
    }
  }
  if (err != 0 || job.err.load(std::memory_order_relaxed) == 0) return err;
  // The peer could not do its part (its sandbox may forbid what ours allows): we can.
  return copy_range(t.op, t.local, base + t.remote_offset, t.length);
}

bool ShmLink::wants_help() {
  const shm::CopyJob& job = nic_.image().signals->jobs[peer_.peer_slot];
  const std::uint64_t claim = job.claim.load(std::memory_order_relaxed);  // relaxed: claim_chunk() acquires
  return (claim & 0xffff) < (claim >> 16 & 0xffff);
}

// A chunk or more of a copy that the peer has announced in our NIC.
bool ShmLink::help() {
  shm::CopyJob& job = nic_.image().signals->jobs[peer_.peer_slot];
  bool helped = false;
  std::uint32_t chunk;
  for (int i = 0; i < kMostHelped && claim_chunk(job, &chunk); ++i) {
    // Every field is the peer's word: our side of the copy must lie in an aperture it has a right to.
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
      err = local ? copy_range(peer_writes ? RdmaOp::kRead : RdmaOp::kWrite, local.data(),
                               job.address.load(std::memory_order_relaxed) + at, bytes)
                  : ESTALE;
    }
    if (err != 0) job.err.store(static_cast<std::uint32_t>(err), std::memory_order_relaxed);
    // PAIR job.done: publishes the bytes to the initiator
    job.done.fetch_add(1, std::memory_order_release);
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
  epoch.store(mine, std::memory_order_seq_cst);
  int err = 0;
  // PAIR aperture.dma: a revocation that we miss here sees our announcement and waits
  if (static_cast<std::uint32_t>(entry.generation.load(std::memory_order_seq_cst)) !=
      t.remote->generation_wanted) {
    err = ESTALE;
  } else {
    std::uint64_t base = entry.base.load(std::memory_order_relaxed);
    std::unique_lock job(job_mutex_, std::defer_lock);
    const bool together = t.length >= kTogetherBytes && job.try_lock();
    err = together ? copy_together(t, base)
                   : copy_range(t.op, t.local, base + t.remote_offset, t.length);
  }
  // PAIR dma.epoch: the copy is over
  epoch.store(mine + 1, std::memory_order_seq_cst);
  // PAIR dma.lane: the next thread under this lane sees our epoch
  lanes_in_use_.fetch_and(~(1u << lane), std::memory_order_release);
  return err;
}

// A lane nobody else copies under. Waits while all are taken, which is for the length of a copy.
std::uint32_t ShmLink::claim_lane() {
  std::uint32_t taken = lanes_in_use_.load(std::memory_order_relaxed);  // relaxed: the exchange decides
  for (;;) {
    const auto lane = static_cast<std::uint32_t>(std::countr_one(taken));
    if (lane >= shm::kDmaLanes) {
      sched_yield();
      taken = lanes_in_use_.load(std::memory_order_relaxed);  // relaxed: as above
      continue;
    }
    // PAIR dma.lane: sees the epoch its last user left
    if (lanes_in_use_.compare_exchange_weak(taken, taken | 1u << lane, std::memory_order_acquire,
                                            std::memory_order_relaxed)) {
      return lane;
    }
  }
}

TransferResult ShmLink::transfer(const Transfer& t) {
  auto failed = [](int err) { return TransferResult{TransferResult::Kind::kError, err}; };
  if (!alive()) return failed(ECONNRESET);
  const RemoteHandle& r = *t.remote;
  const bool write = t.op == RdmaOp::kWrite;
  if (t.remote_offset > r.length || t.length > r.length - t.remote_offset) return failed(ERANGE);
  if (!includes(r.rights, write ? Rights::kWrite : Rights::kRead)) return failed(EACCES);
  if (r.mapped != nullptr) {
    if (static_cast<std::uint32_t>(r.generation->load(std::memory_order_acquire)) !=
        r.generation_wanted) {
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
  nic::fire_tripwires(image_, r.aperture, t.remote_offset, t.length,
                      write ? AccessKind::kWrite : AccessKind::kRead);
  return {};
}

Status ShmLink::put(const RemoteHandle& handle, std::uint64_t offset, std::span<const std::byte> bytes,
                    nic::PutOrder) {
  if (handle.mapped == nullptr && !direct_copy_) {
    return Error{EOPNOTSUPP, "PIO to memory that only its owner can copy; use RDMA"};
  }
  Transfer t{RdmaOp::kWrite, &handle, offset, const_cast<std::byte*>(bytes.data()), bytes.size(), 0};
  auto result = transfer(t);
  if (result.kind == TransferResult::Kind::kDone) return {};
  return Error{result.err, "write to a remote aperture"};
}

Status ShmLink::get(const RemoteHandle& handle, std::uint64_t offset, std::span<std::byte> bytes) {
  if (handle.mapped == nullptr && !direct_copy_) {
    return Error{EOPNOTSUPP, "PIO from memory that only its owner can copy; use RDMA"};
  }
  Transfer t{RdmaOp::kRead, &handle, offset, bytes.data(), bytes.size(), 0};
  auto result = transfer(t);
  if (result.kind == TransferResult::Kind::kDone) return {};
  return Error{result.err, "read from a remote aperture"};
}

Status ShmLink::after_access(const RemoteHandle& handle, std::uint64_t offset, std::uint64_t length,
                             AccessKind kind) {
  if (!alive()) return Error{ECONNRESET, "the peer is gone"};
  if (static_cast<std::uint32_t>(entry_of(handle)->generation.load(std::memory_order_acquire)) !=
      handle.generation_wanted) {
    return Error{ESTALE, "the aperture has been revoked"};
  }
  nic::fire_tripwires(image_, handle.aperture, offset, length, kind);
  return {};
}

// --- copies by the peer's driver, where process_vm_* is forbidden --------------------------------

// The memory is the link's own as long as it is up.
Status ShmLink::make_staging() {
  auto block = nic::MemoryBlock::create(kStagingBytes);
  if (!block) return block.error();
  auto cookie = nic_.export_aperture({(*block)->data(), (*block)->size(), Rights::kReadWrite, *block});
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
  nic_.retire(cookie->aperture);  // not granted, the link has gone down, or another thread was faster
  return granted;
}

// One at a time per link: this is the slow path that keeps a forbidden kernel feature from being an
// error. The data pass through staging memory of ours that the peer maps.
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
  ControlMessage message;
  message.type = ControlType::kCopy;
  message.request = next_request_++;
  message.cookie.node = peer_.node;
  message.cookie.key = t.remote->key;
  message.cookie.length = t.remote->length;
  message.cookie.aperture = t.remote->aperture;
  message.cookie.generation = t.remote->generation_wanted;
  message.cookie.rights = t.remote->rights;
  auto grant_of = nic_.check_cookie(staging_cookie_);
  message.memory_id = grant_of.ok() ? grant_of->memory_id : 0;
  message.offset = t.remote_offset;
  message.length = t.length;
  message.flags = static_cast<std::uint32_t>(t.op);
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
  ControlMessage reply;
  reply.type = ControlType::kCopyDone;
  reply.request = message.request;
  const bool write = message.flags == static_cast<std::uint32_t>(RdmaOp::kWrite);
  {
    std::lock_guard lock(mutex_);
    // Possession of the key is the permission: anyone can read apertures and generations. Asked first: who
    // holds a landing must not call the NIC, which may be waiting for it.
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
      std::memcpy(target.data(), staging->second.mapping.data(), message.length);
    } else {
      std::memcpy(staging->second.mapping.data(), target.data(), message.length);
    }
  }
  if (reply.err == 0) {
    nic::fire_tripwires(nic_.image(), message.cookie.aperture, message.offset, message.length,
                        write ? AccessKind::kWrite : AccessKind::kRead);
  }
  (void)send(reply, {});
}

void ShmLink::cancel(std::uint64_t token) {
  std::lock_guard lock(mutex_);
  // The peer goes on copying to or from our staging memory; our caller's memory is left alone.
  if (copy_request_ != 0 && copy_.token == token) copy_.local = nullptr;
}

// --- out-of-band, event queues -------------------------------------------------------------------

Status ShmLink::send_oob(const OobMessage& message) {
  ControlMessage control;
  control.type = ControlType::kOob;
  control.oob = message;
  // CLAN's own must arrive: a connection's end or answer that is lost leaves the peer waiting.
  return send(control, {}, (message.type & kOobInternal) == 0);
}

void ShmLink::confirm() {
  ControlMessage message;
  message.type = ControlType::kReady;
  (void)send(message, {});
}

void ShmLink::announce_queue_fd(std::uint32_t queue, int eventfd) {
  ControlMessage message;
  message.type = ControlType::kQueueFd;
  message.slot = queue;
  (void)send(message, {&eventfd, 1});
}

void ShmLink::ring(std::uint32_t queue) {
  int fd = -1;
  {
    std::lock_guard lock(mutex_);
    if (queue < queue_fds_.size()) fd = queue_fds_[queue].get();
    if (fd < 0) fd = peer_.doorbell.get();  // its driver finds out which queue
    if (fd >= 0) signal_eventfd(fd);
  }
}

// --- the control socket ---------------------------------------------------------------------------

void ShmLink::on_ready(std::uint32_t events) {
  auto self = shared_from_this();
  if ((events & EPOLLOUT) != 0) flush();
  for (int i = 0; i < 64 && alive(); ++i) {  // bounded: other peers' sockets wait as well
    ControlMessage message;
    auto datagram =
        receive_datagram(peer_.socket.get(), std::as_writable_bytes(std::span(&message, 1)), false);
    if (!datagram) {
      if (datagram.error().err == EMSGSIZE) {
        misbehaved("sent a control message of another size");
      } else if (datagram.error().err != EAGAIN) {
        go_down();
      }
      return;
    }
    if (datagram->bytes != sizeof message || message.magic != kControlMagic ||
        message.version != shm::kLayoutVersion) {
      if (datagram->bytes == 0) {
        go_down();
      } else {
        misbehaved("sent a malformed control message");
      }
      return;
    }
    settled_.store(true, std::memory_order_relaxed);  // relaxed: a flag
    if (datagram->fds_lost) {
      descriptor_lost(message);
    } else {
      handle(message, *datagram);
    }
  }
}

// The peer has done nothing wrong: this process has too many files open.
void ShmLink::descriptor_lost(const ControlMessage& message) {
  if (!std::exchange(told_of_lost_, true)) {
    CLAN_WARN("too many open files: what peer %d passed is lost; raise the limit (ulimit -n)",
              static_cast<int>(remote_pid()));
  }
  if (message.type == ControlType::kMemory) {
    ControlMessage again;
    again.type = ControlType::kLost;
    again.memory_id = message.memory_id;
    (void)send(again, {});
  } else if (message.type == ControlType::kImportReply) {
    take_answer(message.request, EMFILE);
  }  // without a queue's own descriptor its doorbell does
}

void ShmLink::take_answer(std::uint64_t request, int err) {
  std::lock_guard lock(mutex_);
  auto it = answers_.find(request);
  if (it == answers_.end()) return;
  it->second = {true, err};
  answered_.notify_all();
}

void ShmLink::handle(ControlMessage& message, Datagram& datagram) {
  switch (message.type) {
    case ControlType::kOob:
      message.oob.length = std::min<std::uint32_t>(message.oob.length, kOobPayload);
      sink_.on_oob(shared_from_this(), message.oob);
      break;
    case ControlType::kMemory:
      accept_memory(message, datagram);
      break;
    case ControlType::kImport:
      serve_import(message);
      break;
    case ControlType::kImportReply:
      accept_memory(message, datagram);
      take_answer(message.request, message.err);
      break;
    case ControlType::kLost: {
      std::lock_guard lock(mutex_);
      std::erase(granted_, message.memory_id);  // the next grant() sends it again
      break;
    }
    case ControlType::kQueueFd: {
      std::lock_guard lock(mutex_);
      if (message.slot < shm::kMaxEventQueues && datagram.fd_count == 1 &&
          may_be_eventfd(datagram.fds[0].get())) {
        if (queue_fds_.size() <= message.slot) queue_fds_.resize(message.slot + 1);
        queue_fds_[message.slot] = std::move(datagram.fds[0]);
      }
      break;
    }
    case ControlType::kReady:
      break;  // settled_ has been set, as by any message
    case ControlType::kCopy:
      serve_copy(message);
      break;
    case ControlType::kCopyDone: {
      Transfer t;
      {
        std::lock_guard lock(mutex_);
        if (copy_request_ == 0 || copy_request_ != message.request) break;
        t = copy_;
        copy_request_ = 0;
        if (message.err == 0 && t.op == RdmaOp::kRead && t.local != nullptr) {
          std::memcpy(t.local, staging_->data(), t.length);
        }
      }
      sink_.on_transfer_done(t.token, message.err, message.err == 0 ? t.length : 0);
      break;
    }
    default:
      misbehaved("sent an unknown control message");
  }
}

void ShmLink::go_down() {
  if (!alive_.exchange(false)) return;
  reactor_.remove(peer_.socket.get());
  bool copying;
  {
    std::lock_guard lock(mutex_);
    copying = std::exchange(copy_request_, 0) != 0;
    answered_.notify_all();
  }
  leave_nic();
  if (copying) sink_.on_transfer_done(copy_.token, ECONNRESET, 0);
  sink_.on_link_down(shared_from_this());
}

void ShmLink::shut_down() {
  // The peer sees end-of-file, and our own reactor does as well and cleans up.
  ::shutdown(peer_.socket.get(), SHUT_RDWR);
}

void ShmLink::abandon_after_fork() {
  alive_.store(false);
  slot_held_.store(false);  // the parent's
  peer_.socket.reset();
  peer_.doorbell.reset();
  for (Fd& fd : queue_fds_) fd.reset();
}

}  // namespace clan::link

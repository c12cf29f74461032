#include "nic/nic.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "base/random.h"
#include "clan/detail/dekker.h"
#include "clan/detail/words.h"

namespace clan::nic {

using shm::ApertureEntry;

std::uint64_t key_image(const RdmaCookie& cookie) {
  // Everything the cookie promises is under the key, so no field can be changed without it.
  const std::uint64_t promised[] = {
      cookie.node.value ^ (std::uint64_t{cookie.aperture} << 32 | cookie.generation),
      cookie.length ^ (static_cast<std::uint64_t>(cookie.rights) << 62)};
  return siphash(cookie.key, 0x434c414e6b657921u, std::as_bytes(std::span(promised)));
}

Result<std::unique_ptr<Nic>> Nic::create(NodeId node, uid_t peers_uid) {
  std::unique_ptr<Nic> nic(new Nic(node, peers_uid));
  auto tables = create_memfd("clan-nic-tables", shm::kTablesBytes);
  if (!tables) return tables.error();
  auto signals = create_memfd("clan-nic-signals", shm::kSignalsBytes);
  if (!signals) return signals.error();
  auto tables_map = Mapping::map(tables->get(), shm::kTablesBytes, Mapping::Access::kReadWrite);
  if (!tables_map) return tables_map.error();
  auto signals_map = Mapping::map(signals->get(), shm::kSignalsBytes, Mapping::Access::kReadWrite);
  if (!signals_map) return signals_map.error();
  nic->tables_fd_ = std::move(*tables);
  nic->signals_fd_ = std::move(*signals);
  nic->tables_map_ = std::move(*tables_map);
  nic->signals_map_ = std::move(*signals_map);
  nic->tables_ = reinterpret_cast<shm::NicTables*>(nic->tables_map_.data());
  nic->image_ = {nic->tables_, reinterpret_cast<shm::NicSignals*>(nic->signals_map_.data()),
                 nullptr};
  nic->cma_probe_ = random_u64();

  shm::NicHeader& header = nic->tables_->header;
  header.magic = shm::kNicMagic;
  header.version = shm::kLayoutVersion;
  header.flags = shm::AsymmetricFence::register_process() ? shm::kNicFences : 0;
  header.tables_bytes = shm::kTablesBytes;
  header.signals_bytes = shm::kSignalsBytes;
  header.node = node.value;
  header.owner_pid = static_cast<std::uint32_t>(::getpid());
  header.owner_uid = ::geteuid();
  header.cma_probe_address = reinterpret_cast<std::uint64_t>(&nic->cma_probe_);
  header.cma_probe_value = nic->cma_probe_;
  // Kernels before 5.1 lack the seal: peers could then write the tables, as they could by ptrace.
  (void)seal_future_write(nic->tables_fd_.get());
  // Or a peer could seal the signals, and the next one could not map them.
  if (auto s = seal_seals(nic->tables_fd_.get()); !s) return s.error();
  if (auto s = seal_seals(nic->signals_fd_.get()); !s) return s.error();
  return nic;
}

// No other live aperture of the same memory may be `conflicting`.
template <typename Conflicting>
bool Nic::any_other(const ApertureSpec& spec, Conflicting&& conflicting) const {
  return std::any_of(apertures_.begin(), apertures_.end(), [&](const LocalAperture& other) {
    return other.live && other.spec.block == spec.block && conflicting(other.spec);
  });
}

// Prepares CLAN memory, sealed because peers may map it.
Result<MemoryBlock::Backing> Nic::prepare_backing(const ApertureSpec& spec) {
  MemoryBlock& block = *spec.block;
  if (!block.contains(spec.base, spec.length))
    return Error{ERANGE, "aperture reaches beyond its CLAN memory"};
  const auto offset = static_cast<std::uint64_t>(spec.base - block.data());
  if (!includes(spec.rights, Rights::kWrite)) {
    // A peer maps whole pages, so "read only" holds for all of a memory or for none of it.
    if (any_other(spec, [](const ApertureSpec& other) {
          return includes(other.rights, Rights::kWrite);
        })) {
      return Error{EBUSY, "this CLAN memory is exported for writing; use another one"};
    }
    if (auto s = block.seal_read_only(); !s) return s.error();
  } else if (block.read_only()) {
    return Error{EPERM, "this CLAN memory has been exported read-only; use another one"};
  }
  auto backing = block.find(offset, spec.length);
  if (!backing) {
    // Parts of the range have been revoked before; give it one memory again.
    const auto overlaps = [&](const ApertureSpec& other) {
      return other.base < spec.base + spec.length && spec.base < other.base + other.length;
    };
    if (any_other(spec, overlaps)) {
      return Error{EBUSY, "the aperture overlaps one whose memory is split by a revocation"};
    }
    if (auto s = block.replace(offset, spec.length); !s) return s.error();
    backing = block.find(offset, spec.length);
  }
  if (!block.read_only()) {
    if (auto s = block.seal_shared(offset, spec.length); !s) return s.error();
  }
  return *backing;
}

Result<std::uint32_t> Nic::take_aperture() {
  if (!free_apertures_.empty()) {
    const std::uint32_t index = free_apertures_.front();
    free_apertures_.pop_front();
    return index;
  }
  if (apertures_.size() >= shm::kMaxApertures)
    return Error{ENOSPC, "65536 apertures are exported already"};
  apertures_.emplace_back();
  return static_cast<std::uint32_t>(apertures_.size() - 1);
}

Result<RdmaCookie> Nic::export_aperture(const ApertureSpec& spec) {
  if (spec.base == nullptr || spec.length == 0) return Error{EINVAL, "export of an empty aperture"};
  if (spec.rights == Rights::kNone) return Error{EINVAL, "export without rights"};
  std::lock_guard lock(mutex_);
  MemoryBlock::Backing memory;
  if (spec.block) {
    auto backing = prepare_backing(spec);
    if (!backing) return backing.error();
    memory = *backing;
  }
  auto index = take_aperture();
  if (!index) return index.error();
  LocalAperture& local = apertures_[*index];
  local.spec = spec;
  local.key = random_u64();
  local.memory_id = memory.id;
  local.live = true;

  ApertureEntry& entry = tables_->apertures[*index];
  const std::uint64_t generation = entry.generation.load(std::memory_order_relaxed) + 1;
  RdmaCookie cookie;
  cookie.node = node_;
  cookie.key = local.key;
  cookie.offset = memory.offset;
  cookie.length = spec.length;
  cookie.aperture = *index;
  cookie.generation = static_cast<std::uint32_t>(generation);
  cookie.rights = spec.rights;
  auto relaxed = std::memory_order_relaxed;  // all published by the generation
  entry.armed.store(0, relaxed);
  entry.length.store(spec.length, relaxed);
  entry.base.store(reinterpret_cast<std::uint64_t>(spec.base), relaxed);
  entry.memory.store(memory.id, relaxed);
  entry.memory_offset.store(memory.offset, relaxed);
  entry.key_image.store(key_image(cookie), relaxed);
  entry.rights.store(static_cast<std::uint32_t>(spec.rights), relaxed);
  entry.first_tripwire.store(local.tripwires.empty() ? shm::kNoTripwire : local.tripwires.front(),
                             relaxed);
  // PAIR aperture.generation: publishes the entry to importers and resolve
  words::store_release(entry.generation, generation);
  return cookie;
}

// Copies that links have begun. New ones find us holding the mutex.
void Nic::wait_for_landings() const {
  // PAIR nic.landings: sees their bytes
  while (words::load_acquire(landings_) != 0) ::sched_yield();
}

void Nic::retire_locked(std::uint32_t aperture) {
  LocalAperture& local = apertures_[aperture];
  ApertureEntry& entry = tables_->apertures[aperture];
  // PAIR aperture.dma: the initiator loads it after it has announced its copy (DmaActivity)
  dekker::add(entry.generation, 1);
  // Sends every later access down the slow path, which finds the generation changed.
  entry.armed.store(~std::uint64_t{0}, std::memory_order_relaxed);
  wait_for_landings();
  for (std::uint32_t t : local.tripwires) {
    disarm_signal(t);
    tripwires_[t] = {};
  }
  ++withdrawals_;
  local.live = false;
  local.spec.block.reset();
  free_apertures_.push_back(aperture);
}

Status Nic::revoke(std::uint32_t aperture, const std::function<bool(std::uint32_t)>& peer_alive) {
  std::unique_lock lock(mutex_);
  if (aperture >= apertures_.size() || !apertures_[aperture].live) {
    return Error{EINVAL, "revoke of an aperture that is not exported"};
  }
  LocalAperture& local = apertures_[aperture];
  std::shared_ptr<MemoryBlock> block = local.spec.block;
  if (block) {
    const ApertureSpec& mine = local.spec;
    const auto page = [](const std::byte* p) {
      return reinterpret_cast<std::uintptr_t>(p) / kPageSize;
    };
    if (any_other(mine, [&](const ApertureSpec& other) {
          return &other != &mine && page(other.base) <= page(mine.base + mine.length - 1) &&
                 page(mine.base) <= page(other.base + other.length - 1);
        })) {
      return Error{EBUSY, "another live aperture shares a page with it; revoke that one first"};
    }
    auto offset = static_cast<std::uint64_t>(local.spec.base - block->data());
    wait_for_landings();  // or what they write while the memory is replaced may be lost or torn
    // First the memory, then the table: without memory nothing has changed. What this aperture
    // alone holds goes with it, so nothing is kept.
    const bool kept = block.use_count() > 2;
    if (auto s = kept ? block->replace(offset, local.spec.length) : Status(); !s) return s;
    retire_locked(aperture);
    return {};
  }
  retire_locked(aperture);
  // The caller's own memory: wait for copies that began before the generation changed.
  std::vector<bool> slots = peer_slots_;
  lock.unlock();
  for (std::uint32_t slot = 0; slot < slots.size(); ++slot) {
    if (!slots[slot]) continue;
    for (auto& activity : image_.signals->activity[slot].epoch) {
      // PAIR dma.epoch: announced before the initiator checks the generation
      const std::uint64_t seen = dekker::load(activity);
      while ((seen & 1) != 0 && dekker::load(activity) == seen && peer_alive(slot)) {
        ::usleep(50);
      }
    }
  }
  return {};
}

void Nic::retire(std::uint32_t aperture) {
  std::lock_guard lock(mutex_);
  if (aperture < apertures_.size() && apertures_[aperture].live) retire_locked(aperture);
}

// The aperture, if it is live in that generation.
const Nic::LocalAperture* Nic::live(std::uint32_t aperture, std::uint32_t generation) const {
  if (aperture >= apertures_.size() || !apertures_[aperture].live) return nullptr;
  const auto current = static_cast<std::uint32_t>(
      tables_->apertures[aperture].generation.load(std::memory_order_relaxed));
  return generation == current ? &apertures_[aperture] : nullptr;
}

Result<Nic::Grant> Nic::check_cookie(const RdmaCookie& cookie) {
  std::lock_guard lock(mutex_);
  const LocalAperture* const local = live(cookie.aperture, cookie.generation);
  if (cookie.node != node_ || local == nullptr)
    return Error{ESTALE, "RDMA cookie names no live aperture"};
  if (cookie.key != local->key || cookie.length != local->spec.length ||
      cookie.rights != local->spec.rights) {
    return Error{EACCES, "RDMA cookie with a wrong key"};
  }
  const ApertureSpec& spec = local->spec;
  if (!spec.block) return Grant{};
  const auto offset = static_cast<std::uint64_t>(spec.base - spec.block->data());
  const auto backing = spec.block->find(offset, spec.length);
  if (!backing) return Error{ESTALE, "RDMA cookie of revoked memory"};
  return Grant{backing->id, backing->bytes, backing->memfd, spec.block->read_only(), backing->file};
}

Nic::Landing Nic::resolve(std::uint32_t aperture, std::uint32_t generation, std::uint64_t offset,
                          std::uint64_t length, Rights right) {
  std::lock_guard lock(mutex_);
  const LocalAperture* const local = live(aperture, generation);
  if (local == nullptr || !includes(local->spec.rights, right)) return {};
  if (offset > local->spec.length || length > local->spec.length - offset) return {};
  // relaxed: retire_locked() holds the same mutex
  landings_.fetch_add(1, std::memory_order_relaxed);
  return Landing(local->spec.base + offset, EndLanding{&landings_});
}

Result<std::uint32_t> Nic::add_peer_slot() {
  std::lock_guard lock(mutex_);
  auto free = std::find(peer_slots_.begin(), peer_slots_.end(), false);
  auto slot = static_cast<std::uint32_t>(free - peer_slots_.begin());
  if (slot >= shm::kMaxPeers) return Error{ENOSPC, "4096 peers are attached already"};
  if (free == peer_slots_.end()) peer_slots_.push_back(true);
  peer_slots_[slot] = true;
  // order: before the peer learns the slot: it compares dma.epoch and job.claim with these
  for (auto& epoch : image_.signals->activity[slot].epoch)
    epoch.store(0, std::memory_order_seq_cst);
  // A job its predecessor left behind must not run with the newcomer's addresses.
  image_.signals->jobs[slot].claim.store(0, std::memory_order_seq_cst);
  return slot;
}

void Nic::remove_peer_slot(std::uint32_t slot) {
  std::lock_guard lock(mutex_);
  if (slot < peer_slots_.size()) peer_slots_[slot] = false;
}

std::uint32_t Nic::live_apertures() const {
  std::lock_guard lock(mutex_);
  return static_cast<std::uint32_t>(
      std::count_if(apertures_.begin(), apertures_.end(), [](const auto& a) { return a.live; }));
}

}  // namespace clan::nic

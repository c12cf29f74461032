#include "transport/remote_memory.h"

#include <clan/detail/clock.h>

#include <algorithm>
#include <cstring>

#include "objects/domain.h"
#include "objects/memory_region.h"
#include "wire/slow_copy.h"

namespace clan::ofi {
namespace {

// A peer's driver thread is waited for under the lock: not long, and not again for a while once it
// did not answer (Silence).
constexpr std::int64_t kPatienceMs = 100;
constexpr std::int64_t kFarPatienceMs = 1000;  ///< of a peer on another host: round trips
constexpr std::uint32_t kMostCopies = 512;     ///< requests of one access
constexpr std::size_t kMostRegions = 4096;     ///< of one peer, remembered

std::int64_t patience_with(const Peer& peer) {
  return peer.name.local() ? kPatienceMs : kFarPatienceMs;
}

}  // namespace

RemoteRegion* RemoteMemory::region_of(Peer& peer, std::uint64_t key, int* rc) {
  if (auto it = peer.regions.find(key); it != peer.regions.end()) return &it->second;
  if (peer.silence.holds(monotonic_ns)) {
    *rc = -FI_EAGAIN;
    return nullptr;
  }
  auto found = RemoteAperture::look_up(domain_.context(), NodeId{peer.node}, key,
                                       patience_with(peer), static_cast<std::int64_t>(peer.uid));
  if (!found) {
    *rc = found.error().err == ENOENT ? -FI_ENOKEY : failure(found.error());
    if (found.error().err == ETIMEDOUT) *rc = is_silent(peer);
    return nullptr;
  }
  peer.silence.end();
  // A region is its owner's own memory, so there is nothing to wait for.
  auto aperture = RemoteAperture::import(domain_.context(), found->cookie, 0,
                                         static_cast<std::int64_t>(peer.uid));
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
  // Keys that the peer gives but once (FI_MR_PROV_KEY) would be kept for ever. One that is still in
  // use is looked up again.
  const bool in_use = has_begun() || peer.far_reads + peer.far_writes > 0;
  if (peer.regions.size() >= kMostRegions && !in_use) peer.regions.erase(peer.regions.begin());
  auto [it, added] = peer.regions.emplace(key, std::move(region));
  return &it->second;
}

void RemoteMemory::drop_queue() {
  rdma_.reset();
  copying_ = 0;
}

int RemoteMemory::is_silent(Peer& peer) {
  peer.silence.begin(monotonic_ns());
  return -FI_EAGAIN;
}

int RemoteMemory::import_pieces(Peer& peer, std::uint32_t count, RemoteRegion* region) {
  if (count > kRegionPieces) return -FI_EINVAL;
  RegionPiece table[kRegionPieces];
  if (auto s = copy(region->aperture, false, 0, reinterpret_cast<std::byte*>(table),
                    count * sizeof *table);
      !s) {
    return s.error().err == ESTALE ? -FI_ENOKEY : failure(s.error());
  }
  if (has_begun()) {
    const int rc = wait_for_copies(patience_with(peer));
    if (rc == -FI_EINPROGRESS) {
      drop_queue();  // the table is ours again
      return is_silent(peer);
    }
    if (rc != 0) return rc;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    auto piece = RemoteAperture::import(domain_.context(), table[i].cookie, 0,
                                        static_cast<std::int64_t>(peer.uid));
    if (!piece && piece.error().err == EAGAIN) return -FI_EINVAL;
    if (!piece) return piece.error().err == ESTALE ? -FI_ENOKEY : failure(piece.error());
    if (piece->size() != table[i].length) return -FI_EINVAL;
    region->pieces.push_back(std::move(*piece));
  }
  return 0;
}

// One copy, done when this returns, or a request to the peer's driver thread.
Status RemoteMemory::copy(RemoteAperture& aperture, bool write, std::uint64_t offset,
                          std::byte* local, std::size_t length) {
  Status status =
      write ? aperture.write(offset, local, length) : aperture.read(offset, local, length);
  if (status || status.error().err != EOPNOTSUPP) [[likely]]
    return status;
  // The kernel does not let us copy: the peer's driver thread does.
  if (auto s = aperture.check(); !s) return s;
  copied_by_peers_ = true;
  if (!rdma_) {
    auto queue = RdmaQueue::create(domain_.context(), kMostCopies);
    if (!queue) return queue.error();
    rdma_.emplace(std::move(*queue));
  }
  status = write ? rdma_->write(aperture, offset, local, length)
                 : rdma_->read(aperture, offset, local, length);
  if (status) ++copying_;
  return status;
}

int RemoteMemory::end() { return wait_for_copies(kPatienceMs); }

int RemoteMemory::wait_for_copies(std::int64_t patience_ms) {
  if (copying_ == 0) return 0;
  const std::uint64_t deadline = deadline_after_ms(patience_ms);
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
      drop_queue();
      return failure(waited.error());
    }
  }
  return copy_failure(err);
}

void RemoteMemory::keep_slow(Peer& peer, SlowCopies copies) {
  if (copies.err == 0) copies.err = copies_err_;
  peer.slow = std::make_unique<SlowCopies>(std::move(copies));
  peer.slow->queue = std::move(*rdma_);
  peer.slow->left = std::exchange(copying_, 0);
  rdma_.reset();
  slow_.push_back(&peer);
  domain_.look_soon();
}

std::uint64_t RemoteMemory::offset_in(const RemoteRegion& region, std::uint64_t address) const {
  return domain_.virtual_addresses() ? address - region.base : address;
}

// Why an access has failed, or 0: it is to be tried again.
int RemoteMemory::judge(Peer& peer, std::uint64_t key, std::size_t length, std::uint64_t offset,
                        const Error& error, bool may_try_again) {
  FI_INFO(&g_provider, FI_LOG_EP_DATA, "access to %zu bytes at 0x%llx of key 0x%llx: %s\n", length,
          static_cast<unsigned long long>(offset), static_cast<unsigned long long>(key),
          error.message().c_str());
  const int err = error.err;
  if (may_try_again && (err == ESTALE || err == ERANGE || err == EACCES)) {
    if (peer.far_reads + peer.far_writes > 0) return -FI_EAGAIN;  // requests refer to it
    peer.regions.erase(key);  // another region may have that key now, and be larger
    return 0;
  }
  switch (err) {
    case ESTALE: return -FI_ENOKEY;
    case ERANGE: return -FI_EINVAL;
    default: return failure(error);
  }
}

int RemoteMemory::access(Peer& peer, bool write, std::uint64_t key, std::uint64_t address,
                         std::byte* local, std::size_t length) {
  return visit(peer, key, address, length,
               [&](RemoteAperture& aperture, std::uint64_t offset, std::size_t at, std::size_t n) {
                 return copy(aperture, write, offset, local + at, n);
               });
}

bool RemoteMemory::owner_listens(const Peer& peer, std::uint64_t key) {
  auto it = peer.regions.find(key);
  return it != peer.regions.end() && it->second.tell_owner;
}

}  // namespace clan::ofi

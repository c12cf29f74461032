// The memory of peers: finding their regions, and copying.
//
// A copy is this processor's (process_vm_readv and its like). Where the kernel forbids that, the
// peer's driver thread makes it: then copy() only begins it, and what does not end within 100 ms
// goes on as SlowCopies. Everything is under the domain's lock, so nothing here waits longer, but
// for what a peer of another host says of a region: one second.
#pragma once

#include <clan/rdma.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "transport/peer.h"

namespace clan::ofi {

class Domain;

class RemoteMemory {
 public:
  explicit RemoteMemory(Domain& domain) : domain_(domain) {}

  /// Copies between local memory and a region of a connected peer. 0 or -FI_...; -FI_EAGAIN:
  /// nothing has been done, the peer does not say where its region is. Where the kernel does not
  /// let us copy this only begins: end() comes next.
  int access(Peer& peer, bool write, std::uint64_t key, std::uint64_t address, std::byte* local,
             std::size_t length);
  /// Calls use(aperture, offset, at, length) for each part of a region that `length` bytes behind
  /// `address` lie in; `at`: how many bytes came before. What it answers is as with access().
  template <typename Use>
  int visit(Peer& peer, std::uint64_t key, std::uint64_t address, std::size_t length, Use&& use) {
    if (length == 0) return 0;
    for (int attempt = 0;; ++attempt) {
      int rc = 0;
      RemoteRegion* region = region_of(peer, key, &rc);
      if (region == nullptr) return rc;
      const std::uint64_t offset = offset_in(*region, address);
      const Status status = region->pieces.empty() ? use(region->aperture, offset, 0, length)
                                                   : visit_pieces(*region, offset, length, use);
      if (status) return 0;
      rc = judge(peer, key, length, offset, status.error(), attempt == 0);
      if (rc != 0) return rc;
    }
  }
  bool has_begun() const { return copying_ > 0; }
  /// Whether the kernel has forbidden us a copy.
  bool copied_by_peers() const { return copied_by_peers_; }
  /// Waits, though not for long, for what access() has begun. 0, -FI_...; -FI_EINPROGRESS:
  /// keep_slow().
  int end();
  /// What access() has begun goes on. `copies`: what is known of it.
  void keep_slow(Peer& peer, SlowCopies copies);
  /// Whether a region's owner wants events for accesses. After access().
  static bool owner_listens(const Peer& peer, std::uint64_t key);

  bool copies_slowly() const { return !slow_.empty(); }
  const std::vector<Peer*>& slow_peers() const { return slow_; }
  /// Calls ended(peer, copies) for each peer whose slow copies have ended. True when there was one.
  template <typename Ended>
  bool look_after_slow(Ended&& ended) {
    bool moved = false;
    std::erase_if(slow_, [&](Peer* peer) {
      if (peer->slow && !take_copies(*peer->slow->queue, &peer->slow->left, &peer->slow->err))
        return false;
      if (peer->slow) ended(*peer, *std::exchange(peer->slow, nullptr));
      moved = true;
      return true;
    });
    return moved;
  }

 private:
  RemoteRegion* region_of(Peer& peer, std::uint64_t key, int* rc);
  int wait_for_copies(std::int64_t patience_ms);
  int import_pieces(Peer& peer, std::uint32_t count, RemoteRegion* region);
  Status copy(RemoteAperture& aperture, bool write, std::uint64_t offset, std::byte* local,
              std::size_t length);
  template <typename Use>
  static Status visit_pieces(RemoteRegion& region, std::uint64_t offset, std::size_t length,
                             Use&& use) {
    std::size_t at = 0;
    for (RemoteAperture& piece : region.pieces) {
      if (offset >= piece.size()) {
        offset -= piece.size();
        continue;
      }
      const auto n =
          static_cast<std::size_t>(std::min<std::uint64_t>(length - at, piece.size() - offset));
      if (auto s = use(piece, offset, at, n); !s) return s;
      at += n;
      offset = 0;
      if (at == length) return {};
    }
    return Error{ERANGE, "beyond the last piece of a region"};
  }
  std::uint64_t offset_in(const RemoteRegion& region, std::uint64_t address) const;
  int judge(Peer& peer, std::uint64_t key, std::size_t length, std::uint64_t offset,
            const Error& error, bool may_try_again);
  int is_silent(Peer& peer);
  void drop_queue();

  Domain& domain_;
  std::optional<RdmaQueue> rdma_;
  std::size_t copying_ = 0;  ///< requests in it
  bool copied_by_peers_ = false;
  int copies_err_ = 0;       ///< of those that ended before -FI_EINPROGRESS
  std::vector<Peer*> slow_;  ///< peers with SlowCopies, and those that had some until just now
};

}  // namespace clan::ofi

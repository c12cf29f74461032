// Nic: the owner's side of one simulated NIC, and its driver's tables.
//
// A Context has one Nic per user id it talks to ("lane"), so that peers of different users never
// meet. A Nic owns the two segments of shm/nic_memory.h and hands out apertures, tripwires and
// event bits. The data path works on NicImage.
//
// Thread-safety: every member may be called from any thread; the mutex guards tables, not traffic.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "clan/cookie.h"
#include "clan/detail/words.h"
#include "nic/memory_block.h"
#include "nic/tripwire_match.h"

namespace clan::nic {

/// What an aperture shows.
struct ApertureSpec {
  std::byte* base = nullptr;
  std::uint64_t length = 0;
  Rights rights = Rights::kReadWrite;
  std::shared_ptr<MemoryBlock> block;  ///< null: the caller's own memory, reached by DMA only
};

/// Names one tripwire of a Nic.
struct TripwireSpec {
  std::uint32_t aperture = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint32_t flags = shm::kTripOnWrite;
  std::uint32_t queue = shm::kMaxEventQueues;  ///< none
  std::uint32_t event = 0;
};

class Nic {
 public:
  static Result<std::unique_ptr<Nic>> create(NodeId node, uid_t peers_uid);

  NicImage image() const { return image_; }
  NodeId node() const { return node_; }
  uid_t peers_uid() const { return peers_uid_; }
  int tables_memfd() const { return tables_fd_.get(); }
  int signals_memfd() const { return signals_fd_.get(); }
  void set_ringer(Ringer* ringer) { image_.ringer = ringer; }

  // Apertures.
  Result<RdmaCookie> export_aperture(const ApertureSpec& spec);
  /// After this no peer's write shows in the aperture's memory, and no peer can read it. Polls
  /// `peer_alive(slot)` while that peer's DMA is under way. EBUSY: a live aperture shares a page.
  Status revoke(std::uint32_t aperture, const std::function<bool(std::uint32_t)>& peer_alive);
  /// Ends an aperture whose peer is gone or has agreed (connection close). No copy.
  void retire(std::uint32_t aperture);
  /// Checks a cookie against the owner's tables. Then its holder may have the memory.
  struct Grant {
    std::uint64_t memory_id = 0;  ///< 0: DMA only
    std::uint64_t memory_bytes = 0;
    int memfd = -1;
    bool read_only = false;
    /// Keeps it open when the aperture has been revoked: its number may be another file's then.
    std::shared_ptr<const Fd> file;
  };
  Result<Grant> check_cookie(const RdmaCookie& cookie);

  /// Our memory that a link copies for a peer. Revocation waits until it is gone: hold it for the
  /// copy only, and call nothing of the Nic meanwhile.
  struct EndLanding {
    std::atomic<std::uint32_t>* under_way;
    // PAIR nic.landings: the copy is over
    void operator()(std::byte*) const { words::subtract(*under_way, 1); }
  };
  using Landing = std::unique_ptr<std::byte, EndLanding>;
  /// Returns where a packet's access lands; null: out of bounds, revoked, no right.
  Landing resolve(std::uint32_t aperture, std::uint32_t generation, std::uint64_t offset,
                  std::uint64_t length, Rights right);

  // Tripwires.
  Result<std::uint32_t> add_tripwire(const TripwireSpec& spec);
  void remove_tripwire(std::uint32_t tripwire);
  /// Arms; look for data again before sleeping. A persistent tripwire is armed once.
  void arm(std::uint32_t tripwire);
  /// The same without a system call, for an aperture of packets only (match_for_packets()).
  void arm_for_packets(std::uint32_t tripwire);
  void disarm(std::uint32_t tripwire);
  /// Disarms a tripwire that will soon be armed again: senders go on checking it, so that arming it
  /// needs no system call.
  void rest(std::uint32_t tripwire);
  /// Withdraws the bits of an aperture's resting tripwires that were not armed since the last call.
  /// Returns whether one still rests.
  bool end_rest(std::uint32_t aperture);
  /// Arms several and pays for one fence.
  void arm_all(std::span<const std::uint32_t> tripwires);
  void bind_event(std::uint32_t tripwire, std::uint32_t queue, std::uint32_t event);
  /// Reads and clears the state bit.
  bool test_and_clear(std::uint32_t tripwire);

  // Peer slots (DmaActivity).
  Result<std::uint32_t> add_peer_slot();
  void remove_peer_slot(std::uint32_t slot);

  std::uint32_t live_apertures() const;
  std::uint32_t live_tripwires() const;

 private:
  struct LocalTripwire {
    std::uint64_t chunks = 0;
    std::uint32_t aperture = 0;
    bool in_use = false;
    bool shown = false;         ///< its bits are in the summary
    bool fenced = false;        ///< since a heavy fence: every sender sees them
    bool armed_lately = false;  ///< since the last end_rest()
  };
  struct LocalAperture {
    ApertureSpec spec;
    std::uint64_t key = 0;
    std::uint64_t memory_id = 0;
    std::vector<std::uint32_t> tripwires;  ///< the chain, in use or not
    bool live = false;
  };

  Nic(NodeId node, uid_t peers_uid) : node_(node), peers_uid_(peers_uid) {}
  template <typename Conflicting>
  bool any_other(const ApertureSpec& spec, Conflicting&& conflicting) const;
  Result<MemoryBlock::Backing> prepare_backing(const ApertureSpec& spec);
  Result<std::uint32_t> take_aperture();
  void chain(std::uint32_t aperture, std::uint32_t tripwire);
  const LocalAperture* live(std::uint32_t aperture, std::uint32_t generation) const;
  void wait_for_landings() const;
  void retire_locked(std::uint32_t aperture);
  template <typename Arm>
  bool arm_each(std::span<const std::uint32_t> tripwires, Arm&& arm_one);
  void disarm_signal(std::uint32_t tripwire);
  bool disarm_locked(std::uint32_t tripwire);

  NodeId node_;
  uid_t peers_uid_;
  std::uint64_t withdrawals_ = 0;  ///< of bits from a summary
  Fd tables_fd_, signals_fd_;
  Mapping tables_map_, signals_map_;
  shm::NicTables* tables_ = nullptr;
  NicImage image_;
  std::uint64_t cma_probe_ = 0;
  std::atomic<std::uint32_t> landings_{0};  ///< copies under way; raised under mutex_

  mutable std::mutex mutex_;
  std::vector<LocalAperture> apertures_;
  /// First in, first out: an index rests long, so that stale imports find it revoked.
  std::deque<std::uint32_t> free_apertures_;
  std::vector<LocalTripwire> tripwires_;
  std::vector<bool> peer_slots_;
};

/// The public image of a cookie's key that peers compare with.
std::uint64_t key_image(const RdmaCookie& cookie);

}  // namespace clan::nic

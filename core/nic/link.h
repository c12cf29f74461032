// Link: how bytes reach the NIC of one peer. Owned by nic/ so that links depend on the NIC, never
// back.
//
// A link maps the peer's memory (shm_link), so that the CPU's stores are the transfer and only
// their notification comes here, or sends packets. Code above decides by RemoteHandle::mapped and
// capabilities(), never by the kind.
//
// Down-calls (Link) come from any thread. Up-calls (LinkSink) come from the driver thread, and not
// at all for transfers that complete at once. A sink may call what does not wait (import with
// may_wait = false, release, grant, put, send_oob), also on the calling link.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/event_count.h"
#include "base/futex.h"
#include "clan/cookie.h"
#include "clan/oob.h"
#include "clan/rdma_request.h"
#include "clan/result.h"
#include "nic/pinned_payload.h"
#include "nic/tripwire_match.h"

namespace clan::nic {

class Nic;

/// What a link promises. Asked once, at connection set-up.
struct LinkCapabilities {
  bool mapped = false;       ///< CLAN memory of the peer is mapped: PIO by plain stores
  bool direct_copy = false;  ///< the peer's own memory is copied in one step (process_vm_writev)
  bool translates = false;   ///< transfers need the NIC TLB: local pages pinned while they run
  const char* name = "";     ///< for people: "shm", "udp"
};

/// An imported aperture, as the link knows it. Plain pointers: valid until release().
struct RemoteHandle {
  std::byte* mapped = nullptr;  ///< null: put() and get()
  /// the receiver's armed summary; null: it looks itself
  const std::atomic<std::uint64_t>* armed = nullptr;
  const std::atomic<std::uint64_t>* generation = nullptr;  ///< null: the link checks
  std::uint64_t memory_id = 0;
  std::uint64_t length = 0;
  std::uint32_t aperture = 0;
  std::uint32_t generation_wanted = 0;
  Rights rights = Rights::kNone;
  std::uint64_t key_image = 0;  ///< for links whose packets prove their right each time
  bool light_fence = false;     ///< a compiler barrier suffices between store and armed
  std::uint64_t key = 0;        ///< the cookie's, for a peer that carries out the access itself
};

/// Whether a packet may be placed before earlier ones. Either way each byte ends as in the order
/// sent (a late packet leaves alone what later ones placed), tripwires fire in that order, and a
/// read or out-of-band message sees all that was sent before. kNoHurry: as kAfterEarlier, and it
/// may wait for what this thread sends next, or for its next look.
enum class PutOrder { kAny, kAfterEarlier, kNoHurry };

/// One piece of an RDMA request on its way.
struct Transfer {
  RdmaOp op = RdmaOp::kWrite;
  const RemoteHandle* remote = nullptr;
  std::uint64_t remote_offset = 0;
  std::byte* local = nullptr;
  std::uint64_t length = 0;
  std::uint64_t token = 0;  ///< for LinkSink::on_transfer_done when the answer is kPending
};

struct TransferResult {
  enum class Kind {
    kDone,
    kPending,  ///< LinkSink::on_transfer_done will tell
    kBusy,     ///< nothing done; offer it again when another transfer of this link has completed
    kError,
  };
  Kind kind = Kind::kDone;
  int err = 0;
};

class Link {
 public:
  virtual ~Link() = default;

  virtual LinkCapabilities capabilities() const = 0;
  virtual NodeId remote_node() const = 0;
  virtual uid_t remote_uid() const = 0;
  virtual pid_t remote_pid() const = 0;
  /// Returns the address of a peer on another host, "HOST:PORT".
  virtual std::string remote_address() const { return {}; }
  /// False once the peer is gone. What it wrote before stays readable in our own memory.
  virtual bool alive() const = 0;
  /// False for a peer's link that is not used yet: the peer may drop it for one that we made.
  virtual bool settled() const { return true; }

  /// Checks a cookie and makes its aperture reachable. ESTALE revoked, EACCES wrong key, ETIMEDOUT;
  /// EAGAIN without `may_wait` (driver thread): the peer would have to be asked.
  virtual Result<RemoteHandle> import(const RdmaCookie& cookie, bool may_wait) = 0;
  virtual void release(const RemoteHandle& handle) = 0;

  /// Makes sure that the peer can import this cookie, one of this NIC's, without asking.
  virtual Status grant(const RdmaCookie& cookie) = 0;

  /// Accesses an aperture that is not mapped; copies before return. put() may wait for room, but
  /// not on the driver thread, and never fails for want of it; it learns of a revocation late:
  /// ESTALE from a later put. get() waits: EDEADLK on the driver thread.
  virtual Status put(const RemoteHandle& handle, std::uint64_t offset,
                     std::span<const std::byte> bytes, PutOrder order) = 0;
  /// Puts 8 bytes or more where words are, and stores the first word last: seeing that is seeing
  /// all. The link may go on to read `kept`, which holds the bytes and is handed over. Packets
  /// only.
  virtual Status publish(const RemoteHandle& /*handle*/, std::uint64_t /*offset*/,
                         std::span<const std::byte> /*bytes*/,
                         const std::shared_ptr<PinnedPayload>& /*kept*/ = {}) {
    return Error{EOPNOTSUPP, "the memory is mapped"};
  }
  virtual Status get(const RemoteHandle& handle, std::uint64_t offset,
                     std::span<std::byte> bytes) = 0;

  /// Returns ESTALE without asking the owner, for handles whose generation is null.
  virtual Status check(const RemoteHandle& /*handle*/) { return {}; }

  /// Tells a peer that cannot see it that an aperture is revoked, after all that was sent. No wait.
  virtual void announce_revoked(std::uint32_t /*aperture*/, std::uint32_t /*generation*/) {}

  /// The CAM look-up after plain accesses to a mapped aperture with an armed summary. ESTALE: it
  /// has been revoked, and the bytes went nowhere.
  virtual Status after_access(const RemoteHandle& handle, std::uint64_t offset,
                              std::uint64_t length, AccessKind kind) = 0;

  /// Returns whether the owner of a mapped aperture with an armed summary waits for accesses.
  virtual bool owner_waits(const RemoteHandle& /*handle*/) const { return true; }

  /// Has the peer announced a large copy that help() could take part in?
  virtual bool wants_help() { return false; }
  /// Helps the peer with a large copy that it has announced, if there is one. True when it did.
  virtual bool help() { return false; }

  /// Moves one chunk by DMA.
  virtual TransferResult transfer(const Transfer& transfer) = 0;
  /// Cancels a pending transfer: its local memory is not touched after this returns. It may take
  /// room until the link reports its end, with ECANCELED.
  virtual void cancel(std::uint64_t token) = 0;

  /// Sends one out-of-band message. ENOBUFS when it had to be discarded.
  virtual Status send_oob(const OobMessage& message) = 0;

  /// Tells the peer which descriptor wakes one of our event queues, where the peer does the waking.
  virtual void announce_queue_fd(std::uint32_t /*queue*/, int /*eventfd*/) {}

  /// Whether the peer copies to and from our memory under this activity slot of `nic`.
  virtual bool holds_slot(const Nic& /*nic*/, std::uint32_t /*slot*/) const { return false; }

  /// Around puts that may leave in one packet; the thread does nothing else meanwhile.
  virtual void begin_batch() {}
  virtual void end_batch() {}

  /// Fetches packets. A waiting thread calls it between its looks, as often as it likes.
  virtual void progress() {}
  /// Sleeps on an armed tripwire while its `fired` is `seen`, as futex_wait(). A link of packets
  /// fetches them meanwhile.
  virtual int sleep(EventCount& fired, std::uint32_t seen, std::uint64_t deadline_ns) {
    return fired.commit_wait([&](auto& news) { return futex_wait(news, seen, deadline_ns); });
  }
  /// A word that a thread may sleep on has changed, and not by what came over this link.
  virtual void wake_sleepers() {}

  /// Ends the link; the peer sees it. Up-calls end with the driver thread or before this returns.
  virtual void shut_down() = 0;

  /// After fork, in the child: lets go of descriptors so that the parent's death is still seen.
  virtual void abandon_after_fork() {}
};

/// What a link reports to.
class LinkSink {
 public:
  virtual void on_oob(const std::shared_ptr<Link>& link, const OobMessage& message) = 0;
  virtual void on_transfer_done(std::uint64_t token, int err, std::uint64_t bytes) = 0;
  virtual void on_link_down(const std::shared_ptr<Link>& link) = 0;
  /// The peer broke the link's protocol; on_link_down follows.
  virtual void on_misbehaviour(const std::shared_ptr<Link>& /*link*/) {}

 protected:
  ~LinkSink() = default;
};

}  // namespace clan::nic

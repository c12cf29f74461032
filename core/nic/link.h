// Link: how bytes reach the NIC of one peer. Owned by nic/ so that links depend on the NIC, never
// back.
//
// Two kinds exist: links that map the peer's memory (shm_link), where the CPU's own stores are the
// transfer and only their notification comes here, and links that send packets. Code above decides
// by RemoteHandle::mapped and capabilities(), never by the kind.
//
// Down-calls (Link) come from any thread. Up-calls (LinkSink) come from the driver thread or, for
// transfers that complete at once, not at all. In an up-call a sink may use what does not wait
// (import with may_wait = false, release, grant, put, send_oob), also on the link that is calling.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/futex.h"
#include "clan/cookie.h"
#include "clan/detail/dekker.h"
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

/// Whether a packet may be placed before those sent earlier. Either way the outcome for any one
/// byte is that of the order sent (a packet that comes late leaves alone what later ones have
/// placed), tripwires fire in the order sent, and a read or out-of-band message sees all that was
/// sent before it. kNoHurry: as kAfterEarlier, and it may wait for what this thread sends next, or
/// for its next look.
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
  /// False for a link the peer has made and not used yet: it may drop it for one that we have made
  /// meanwhile, so we must not rely on it.
  virtual bool settled() const { return true; }

  /// Checks a cookie and makes its aperture reachable. ESTALE revoked, EACCES wrong key, ETIMEDOUT.
  /// `may_wait` = false (driver thread) answers EAGAIN where the peer would have to be asked.
  virtual Result<RemoteHandle> import(const RdmaCookie& cookie, bool may_wait) = 0;
  virtual void release(const RemoteHandle& handle) = 0;

  /// Makes sure that the peer can import this cookie, one of this NIC's, without asking.
  virtual Status grant(const RdmaCookie& cookie) = 0;

  /// Writes to and reads from an aperture that is not mapped. The bytes are copied before return. A
  /// put may wait for room, except on the driver thread, but is never refused for want of it; that
  /// the aperture has been revoked it learns late: ESTALE of a later put. get() waits: EDEADLK on
  /// the driver thread.
  virtual Status put(const RemoteHandle& handle, std::uint64_t offset,
                     std::span<const std::byte> bytes, PutOrder order) = 0;
  /// Puts at least a word of 8 bytes to where words are, and stores the first one behind the rest:
  /// a thread that sees that sees all. `kept`, if any, is what they are in: the link may go on to
  /// read it, and has handed it over then. For links of packets only.
  virtual Status publish(const RemoteHandle& /*handle*/, std::uint64_t /*offset*/,
                         std::span<const std::byte> /*bytes*/,
                         const std::shared_ptr<PinnedPayload>& /*kept*/ = {}) {
    return Error{EOPNOTSUPP, "the memory is mapped"};
  }
  virtual Status get(const RemoteHandle& handle, std::uint64_t offset,
                     std::span<std::byte> bytes) = 0;

  /// What is known of an aperture without asking its owner: ESTALE. Where RemoteHandle::generation
  /// is null; callers that have it look for themselves.
  virtual Status check(const RemoteHandle& /*handle*/) { return {}; }

  /// An aperture of this NIC has been revoked. A peer that cannot see that gets a message, after
  /// all that was sent before. Does not wait.
  virtual void announce_revoked(std::uint32_t /*aperture*/, std::uint32_t /*generation*/) {}

  /// The CAM look-up after plain stores to (loads from) a mapped aperture whose armed summary was
  /// not 0. ESTALE: the aperture has been revoked and the bytes went nowhere.
  virtual Status after_access(const RemoteHandle& handle, std::uint64_t offset,
                              std::uint64_t length, AccessKind kind) = 0;

  /// Has the peer announced a large copy that help() could take part in?
  virtual bool wants_help() { return false; }
  /// Helps the peer with a large copy that it has announced, if there is one. True when it did.
  virtual bool help() { return false; }

  /// Moves one chunk by DMA.
  virtual TransferResult transfer(const Transfer& transfer) = 0;
  /// A pending transfer is no longer wanted: its local memory is not touched after this returns. It
  /// may take room until it has ended; the link then reports its end, with ECANCELED.
  virtual void cancel(std::uint64_t token) = 0;

  /// Sends one out-of-band message. ENOBUFS when it had to be discarded.
  virtual Status send_oob(const OobMessage& message) = 0;

  /// Tells the peer which descriptor wakes one of our event queues, where the peer does the waking.
  virtual void announce_queue_fd(std::uint32_t /*queue*/, int /*eventfd*/) {}

  /// Whether the peer copies to and from our memory under this activity slot of `nic`.
  virtual bool holds_slot(const Nic& /*nic*/, std::uint32_t /*slot*/) const { return false; }

  /// Around puts that belong together and may leave in one packet. The thread does nothing else
  /// meanwhile.
  virtual void begin_batch() {}
  virtual void end_batch() {}

  /// Where packets have to be fetched: a thread that waits calls it between its looks. May be
  /// called often.
  virtual void progress() {}
  /// The calling thread has armed that tripwire and sleeps until `fired` is no longer `seen`, as
  /// futex_wait(). Over a link of packets it fetches them meanwhile, also those that are there.
  virtual int sleep(shm::TripwireSignal& tripwire, std::uint32_t seen, std::uint64_t deadline_ns) {
    // PAIR tripwire.sleepers: before the futex compares; fire() loads it after fired has changed
    dekker::announce(tripwire.sleepers, 1);
    return futex_wait(tripwire.fired, seen, deadline_ns);
  }
  /// A word that a thread may sleep on has changed, and not by what came over this link.
  virtual void wake_sleepers() {}

  /// Ends the link; the peer sees it go. Up-calls end with the driver thread or before this
  /// returns.
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

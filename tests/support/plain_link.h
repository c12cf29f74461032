// PlainNetwork and PlainLink: the plainest link that sends packets, to prove in tests that the
// engine needs no more of a link than nic/link.h says.
//
//   context a                       PlainNetwork                        context b
//     PlainLink ──put, get, oob──> [ queue a->b: delay, reorder ] ──pump──> PlainLink
//               <──────────pump──  [ queue b->a: the same       ] <───────     │
//                                                              memory and tripwires of b's own Nic
//
// The two ends share no memory but the queues. A network has one thread, the pump: it delivers
// packets and makes all up-calls, like the driver thread of a real link. Nothing is lost or
// repeated: reliability is the wire's business, what is tested here is everything above.
//
// Receiving. Every access carries aperture, generation and key image and is checked by the owner's
// Nic. Data that may be placed in any order are placed on arrival, around what later packets have
// placed already. Everything else (ordered puts, tripwires, reads, completions, out-of-band) is
// released in the order sent:
//
//     arrived:   4 put   6 put   7 OOB   | 5 ordered put (arrives now)
//     placed:    4       6               | 5, then release: 5, 6's tripwires, 7
//
// Threads: all members from any thread. Lock order: PlainLink::delivery_ (pump), driver's,
// PlainLink::mutex_, the network's.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/context/context_core.h"
#include "nic/link.h"
#include "nic/nic.h"

namespace clan::test {

class PlainLink;

struct PlainOptions {
  std::uint64_t seed = 1;
  std::uint32_t delay_us = 0;  ///< every packet waits a random time up to this
  std::uint32_t reorder_window =
      1;  ///< which of that many oldest packets is next is random; 1 = in order
  std::size_t packet_bytes = 1400;  ///< payload of one packet at most
  std::size_t max_transfers = 16;   ///< of one link under way; more are kBusy
};

/// One packet. Tests may forge them.
struct PlainPacket {
  enum class Type : std::uint32_t {
    kPut = 1,
    kPutDone,  ///< answer to the last put of a transfer
    kRefused,  ///< an aperture that has been revoked; also the answer to a put that was not allowed
    kRead,
    kReadData,
    kReadRefused,
    kImport,
    kImportDone,
    kOob,
    kDown,
  };
  Type type = Type::kPut;
  bool ordered = false;  ///< put: not before those sent earlier
  int err = 0;
  std::uint64_t sequence = 0;  ///< per direction, given by the network
  std::uint64_t request = 0;   ///< 0 = no answer wanted
  std::uint32_t aperture = 0;
  std::uint32_t generation = 0;
  std::uint64_t key_image = 0;
  std::uint64_t offset = 0;  ///< in the aperture; read data: in what was asked for
  std::uint64_t length = 0;  ///< read: bytes wanted
  RdmaCookie cookie;
  OobMessage oob;
  std::vector<std::byte> bytes;

  // The receiver's notes.
  bool placed = false;
};

struct PlainCounters {
  std::uint64_t delivered = 0;
  std::uint64_t overtaking = 0;    ///< packets delivered before one sent earlier
  std::uint64_t placed_early = 0;  ///< of these, data placed at once
  std::uint64_t held_back = 0;     ///< the others: had to wait for those before
  std::uint64_t trimmed = 0;       ///< late data that gave way to later data already placed
  std::uint64_t refused = 0;    ///< accesses without the right: revoked, wrong key, out of bounds
  std::uint64_t malformed = 0;  ///< packets that make no sense
};

class PlainNetwork {
 public:
  explicit PlainNetwork(const PlainOptions& options = {});
  /// Cuts all links.
  ~PlainNetwork();
  PlainNetwork(const PlainNetwork&) = delete;
  PlainNetwork& operator=(const PlainNetwork&) = delete;

  /// Links two contexts; the engine finds the links by node id. First a's end, then b's.
  std::pair<std::shared_ptr<PlainLink>, std::shared_ptr<PlainLink>> join(engine::ContextCore& a,
                                                                         engine::ContextCore& b);

  /// Packets pile up until resume().
  void pause();
  void resume();
  /// Waits until every packet has been delivered, those included that deliveries cause.
  void settle();
  /// All links go down at once; what is under way is lost.
  void cut();

  PlainCounters counters() const;

  class Pump;

 private:
  std::shared_ptr<Pump> pump_;
};

class PlainLink final : public nic::Link, public std::enable_shared_from_this<PlainLink> {
 public:
  PlainLink(std::shared_ptr<PlainNetwork::Pump> pump, std::size_t direction, NodeId remote,
            engine::ContextCore& context);
  ~PlainLink() override;

  nic::LinkCapabilities capabilities() const override;
  NodeId remote_node() const override { return remote_; }
  uid_t remote_uid() const override;
  pid_t remote_pid() const override;
  bool alive() const override { return alive_.load(std::memory_order_acquire); }
  Result<nic::RemoteHandle> import(const RdmaCookie& cookie, bool may_wait) override;
  void release(const nic::RemoteHandle& handle) override;
  Status grant(const RdmaCookie&) override { return {}; }
  Status put(const nic::RemoteHandle& handle, std::uint64_t offset,
             std::span<const std::byte> bytes, nic::PutOrder order) override;
  Status publish(const nic::RemoteHandle& handle, std::uint64_t offset,
                 std::span<const std::byte> bytes,
                 const std::shared_ptr<nic::PinnedPayload>& kept = {}) override;
  Status get(const nic::RemoteHandle& handle, std::uint64_t offset,
             std::span<std::byte> bytes) override;
  Status check(const nic::RemoteHandle& handle) override;
  void announce_revoked(std::uint32_t aperture, std::uint32_t generation) override;
  Status after_access(const nic::RemoteHandle&, std::uint64_t, std::uint64_t,
                      nic::AccessKind) override;
  nic::TransferResult transfer(const nic::Transfer& transfer) override;
  void cancel(std::uint64_t token) override;
  Status send_oob(const OobMessage& message) override;
  void shut_down() override;
  void abandon_after_fork() override { alive_.store(false); }

  /// Sends any packet whatever, as a hostile peer might.
  void forge(PlainPacket packet);

  // Pump thread.
  void deliver(PlainPacket&& packet);
  void go_down();

 private:
  /// What this end waits for.
  struct Pending {
    enum class Kind { kTransfer, kGet, kImport };
    Kind kind = Kind::kTransfer;
    std::uint64_t token = 0;
    std::byte* local = nullptr;
    std::uint64_t length = 0;
    std::uint64_t missing = 0;  ///< read data not released yet
    bool done = false;
    int err = 0;
  };

  static PlainPacket access_packet(PlainPacket::Type type, const nic::RemoteHandle& handle,
                                   std::uint64_t offset);
  int refusal(const nic::RemoteHandle& handle, std::uint64_t offset, std::uint64_t length,
              Rights right);
  void send_pieces(const nic::RemoteHandle& handle, std::uint64_t offset,
                   std::span<const std::byte> bytes, bool ordered, std::uint64_t request);
  void send_refused(std::uint32_t aperture, std::uint32_t generation, int err);
  Result<Pending> wait_for(std::uint64_t request, std::unique_lock<std::mutex>& lock);
  bool well_formed(const PlainPacket& packet) const;
  nic::Nic::Landing land(const PlainPacket& packet, std::uint64_t length, Rights right, int* err);
  void place(PlainPacket& packet);
  void release(PlainPacket& packet);
  void release_put(PlainPacket& packet);
  void serve_read(const PlainPacket& packet);
  void finish(std::uint64_t request, int err);
  void release_read_data(const PlainPacket& packet);

  std::shared_ptr<PlainNetwork::Pump> pump_;
  const std::size_t direction_;  ///< of what we send
  const NodeId remote_;
  nic::Nic& nic_;
  nic::LinkSink& sink_;
  const std::weak_ptr<engine::ContextCore> owner_;  ///< of both; the pump is not its driver thread
  std::atomic<bool> alive_{true};

  std::mutex delivery_;  ///< held by the pump while it delivers to us
  bool detached_ = false;
  std::uint64_t next_ = 0;                        ///< sequence to be released next
  std::map<std::uint64_t, PlainPacket> waiting_;  ///< arrived, not released

  std::mutex mutex_;
  std::condition_variable answered_;
  std::map<std::uint64_t, Pending> pending_;
  std::uint64_t next_request_ = 1;
  std::size_t transfers_ = 0;
  /// Imported apertures: how often, and why the peer refuses us (0: it does not).
  struct Imported {
    int references = 0;
    int refused = 0;
  };
  std::map<std::pair<std::uint32_t, std::uint32_t>, Imported> imported_;
};

}  // namespace clan::test

// ShmLink: the link to a peer on the same host.
//
// Both ends map each other's NIC segments and granted CLAN memory, so data move by plain stores.
// This class does the rest: the CAM look-up behind a store that met an armed tripwire, copies of
// other memory, set-up and death.
//
// Copies use process_vm_readv/writev where the kernel allows it (probed once per peer), else the
// peer's driver thread copies through staging memory that both map.
//
// Sending never waits: the driver thread sends what finds no room. Two drivers would deadlock.
//
// Locking: one mutex for tables (set-up path), one for a copy that the peer is offered, one for
// sending, taken last; a copy claims a lane of the DMA line. Mapped apertures need none.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "base/reactor.h"
#include "link/control.h"
#include "link/copy_offers.h"
#include "nic/link.h"
#include "nic/nic.h"

namespace clan::link {

/// What hello and accept bring from the other side.
struct ShmPeer {
  NodeId node;
  PeerCredentials credentials;
  Fd socket;
  Mapping tables;
  Mapping signals;
  Fd doorbell;
  std::uint32_t my_slot = 0;    ///< DmaActivity line in the peer's signals that is ours to write
  std::uint32_t peer_slot = 0;  ///< the line in our signals that is the peer's
};

class ShmLink final : public nic::Link,
                      public Pollable,
                      public nic::Ringer,
                      public std::enable_shared_from_this<ShmLink> {
 public:
  struct Options {
    bool direct_copy = true;  ///< false: behave as where process_vm_* is forbidden
    bool accepted = false;    ///< the peer has made this link
  };

  /// `nic`: our lane for this peer's user id; `doorbell`: our own, rung to ask for the driver.
  ShmLink(ShmPeer peer, nic::Nic& nic, nic::LinkSink& sink, Reactor& reactor, Options options);
  ~ShmLink() override;

  /// Puts the control socket under the reactor's watch.
  Status start();

  // nic::Link
  nic::LinkCapabilities capabilities() const override {
    return {.mapped = true, .direct_copy = direct_copy_, .name = "shm"};
  }
  NodeId remote_node() const override { return peer_.node; }
  uid_t remote_uid() const override { return peer_.credentials.uid; }
  pid_t remote_pid() const override { return peer_.credentials.pid; }
  // order: sees what go_down() stored before it
  bool alive() const override { return alive_.load(std::memory_order_acquire); }
  // relaxed: a flag
  bool settled() const override { return settled_.load(std::memory_order_relaxed); }
  Result<nic::RemoteHandle> import(const RdmaCookie& cookie, bool may_wait) override;
  void release(const nic::RemoteHandle& handle) override;
  Status grant(const RdmaCookie& cookie) override;
  Status put(const nic::RemoteHandle& handle, std::uint64_t offset,
             std::span<const std::byte> bytes, nic::PutOrder order) override;
  Status get(const nic::RemoteHandle& handle, std::uint64_t offset,
             std::span<std::byte> bytes) override;
  bool owner_waits(const nic::RemoteHandle& handle) const override;
  Status after_access(const nic::RemoteHandle& handle, std::uint64_t offset, std::uint64_t length,
                      nic::AccessKind kind) override;
  bool wants_help() override;
  bool help() override;
  nic::TransferResult transfer(const nic::Transfer& transfer) override;
  void cancel(std::uint64_t token) override;
  Status send_oob(const OobMessage& message) override;
  void shut_down() override;

  /// Client: this link stays; the server may rely on it.
  void confirm();

  void announce_queue_fd(std::uint32_t queue, int eventfd) override;
  bool holds_slot(const nic::Nic& nic, std::uint32_t slot) const override {
    return &nic == &nic_ && slot == peer_.peer_slot;
  }

  // nic::Ringer: wakes the peer's event queue.
  void ring(std::uint32_t queue) override;

  // Pollable: the control socket.
  void on_ready(std::uint32_t events) override;

  void abandon_after_fork() override;

 private:
  struct Imported {
    Mapping mapping;
    int references = 0;
    bool read_only = false;
    bool granted = false;  ///< sent without being asked for: the peer will not send it again
  };
  const shm::ApertureEntry* entry_of(const nic::RemoteHandle& handle) const;
  Result<nic::RemoteHandle> handle_for(const RdmaCookie& cookie);
  Result<int> ask(ControlMessage message);
  Status send(const ControlMessage& message, std::span<const int> fds,
              bool discard_when_full = false);
  void flush(), misbehaved(const char*what);
  void handle(ControlMessage& message, Datagram& datagram);
  void descriptor_lost(const ControlMessage& message);
  void ask_again(const ControlMessage& granted);
  bool go_without_descriptor(ControlMessage& message, int err);
  void take_answer(std::uint64_t request, int err);
  void serve_import(const ControlMessage& message);
  void serve_copy(const ControlMessage& message);
  void accept_memory(const ControlMessage& message, Datagram& datagram);
  void go_down(), wait_for_copies(), leave_nic();
  Status move_now(const nic::Transfer& transfer);
  int copy_directly(const nic::Transfer& transfer);
  int copy_range(RdmaOp op, std::byte* local, std::uint64_t remote, std::uint64_t length) const;
  int copy_together(const nic::Transfer& transfer, std::uint64_t base);
  std::uint32_t claim_lane();
  Status make_staging();
  nic::TransferResult copy_by_peer(const nic::Transfer& transfer);

  ShmPeer peer_;
  nic::Nic& nic_;
  nic::LinkSink& sink_;
  Reactor& reactor_;
  nic::NicImage image_;
  std::atomic<bool> alive_{true}, settled_{false}, ending_{false};  ///< by shut_down()
  bool direct_copy_ = false;
  bool light_fence_ = false;

  std::mutex mutex_;
  std::condition_variable answered_;
  std::map<std::uint64_t, Imported> imported_;  ///< the peer's memories mapped here, by id
  std::uint64_t imported_bytes_ = 0;            ///< of all of them
  std::vector<std::uint64_t> granted_;          ///< our memories the peer has been sent, sorted
  /// requests a thread waits for: an errno value, once there is an answer
  std::map<std::uint64_t, std::optional<int>> answers_;
  nic::Transfer copy_;              ///< what the peer's driver is copying for us
  std::uint64_t copy_request_ = 0;  ///< its number, 0 = none
  std::uint64_t next_request_ = 1;
  std::vector<Fd> queue_fds_;  ///< the peer's, by queue
  std::shared_ptr<nic::MemoryBlock> staging_;
  RdmaCookie staging_cookie_;

  struct Unsent {
    ControlMessage message;
    Fd fd;
  };
  std::mutex send_mutex_;
  std::deque<Unsent> unsent_;
  bool told_of_lost_ = false;  ///< driver thread

  /// Lanes of our DmaActivity in the peer's NIC that one of our threads is copying under.
  std::atomic<std::uint32_t> lanes_in_use_{0};
  std::mutex job_mutex_;
  std::uint32_t job_sequence_ = 0;  ///< under job_mutex_
  CopyOffers offers_;               ///< under job_mutex_
  std::atomic<bool> slot_held_{true};
};

/// Client: connects to an abstract name and shakes hands with a process of user `owner`, which the
/// kernel vouches for. `lane` returns our NIC for the server's uid, or null if policy forbids it.
/// `endpoint` is set to what the name stands for there.
Result<ShmPeer> dial(std::string_view name, uid_t owner, NodeId self, int doorbell,
                     const std::function<nic::Nic*(uid_t)>& lane, std::uint64_t deadline_ns,
                     std::uint32_t* endpoint);

/// The first half: connects, says hello. Waits for backlog room until the deadline; EAGAIN: none.
Result<ShmPeer> begin_dial(std::string_view name, uid_t owner, NodeId self, int doorbell,
                           const std::function<nic::Nic*(uid_t)>& lane,
                           std::uint64_t deadline_ns = 0);
/// The second: the server's answer. EAGAIN: none yet. On another error, or when nobody waits any
/// more, the caller gives the slot in the NIC back.
Status finish_dial(ShmPeer& peer, std::uint32_t* endpoint);

/// Server: says no to a client, with an errno value.
void refuse(int socket, NodeId self, int err);

/// Server: shakes hands on an accepted socket. Never waits: the hello has arrived or EAGAIN.
Result<ShmPeer> answer(Fd socket, NodeId self, int doorbell,
                       const std::function<nic::Nic*(uid_t)>& lane, std::uint32_t endpoint);

}  // namespace clan::link

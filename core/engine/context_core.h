// ContextCore: what a Context is inside. Lanes (one NIC per peer user id), links, endpoints, services.
//
// Thread-safety: everything from any thread unless a comment says "driver thread". The mutex guards
// tables of the set-up path; data never pass here.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/reactor.h"
#include "clan/aperture.h"
#include "clan/context.h"
#include "link/shm_link.h"
#include "nic/link.h"
#include "nic/nic.h"

namespace clan::engine {

class EventQueueCore;
class ContextCore;
class RdmaDriver;
class Network;

/// Who receives out-of-band messages of one endpoint, and hears of dead peers. Driver thread.
class OobSink {
 public:
  virtual ~OobSink() = default;
  virtual void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) = 0;
  virtual void on_link_down(const std::shared_ptr<nic::Link>& link) = 0;
};

/// Ring memory of connections with one peer: a peer can spoil only what it shares with us.
class RegionArena {
 public:
  struct Region {
    std::shared_ptr<nic::MemoryBlock> block;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::byte* data() const { return block->data() + offset; }
  };
  Result<Region> allocate(std::uint64_t bytes);
  /// Gives the pages back to the kernel.
  void free(const Region& region);

 private:
  std::mutex mutex_;
  std::vector<Region> free_;
  std::shared_ptr<nic::MemoryBlock> block_;
  std::uint64_t used_ = 0;
};

/// What a node is asked, not an endpoint of it: aperture_names.h.
constexpr std::uint32_t kOobLookUp = kOobInternal | 6;
constexpr std::uint32_t kOobFound = kOobInternal | 7;

/// Apertures of a context that have names. Thread-safe.
class ApertureNames {
 public:
  bool add(std::uint64_t name, const nic::Nic* nic, const NamedAperture& aperture) {
    std::lock_guard lock(mutex_);
    return names_.try_emplace(name, Entry{nic, aperture}).second;
  }
  void remove(std::uint64_t name) {
    std::lock_guard lock(mutex_);
    names_.erase(name);
  }
  /// Only for peers of the NIC that shows it.
  bool find(std::uint64_t name, const nic::Nic* nic, NamedAperture* aperture) {
    std::lock_guard lock(mutex_);
    auto it = names_.find(name);
    if (it == names_.end() || it->second.nic != nic) return false;
    *aperture = it->second.aperture;
    return true;
  }

 private:
  struct Entry {
    const nic::Nic* nic;
    NamedAperture aperture;
  };
  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Entry> names_;
};

/// Counters that several threads raise; read by anyone.
struct CoreCounters {
  std::atomic<std::uint64_t> connections_opened{0}, connections_reset{0}, hostile_peers{0},
      oob_discarded{0}, sleeps{0}, wakeups{0};
};
inline void count(std::atomic<std::uint64_t>& counter) {
  counter.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
}

class ContextCore final : public nic::LinkSink,
                          public nic::Ringer,
                          public std::enable_shared_from_this<ContextCore> {
 public:
  static Result<std::shared_ptr<ContextCore>> create(const ContextOptions& options);
  ~ContextCore();
  void shut_down();

  NodeId node() const { return node_; }
  /// The address of one of our endpoints.
  Address address_of(std::uint32_t endpoint) const {
    return {node_, endpoint, static_cast<std::uint32_t>(uid_)};
  }
  /// A user id as the API takes it: -1 is our own, as it was when the context was made.
  uid_t owner(std::int64_t uid) const { return uid < 0 ? uid_ : static_cast<uid_t>(uid); }
  const ContextOptions& options() const { return options_; }
  CoreCounters& counters() { return counters_; }
  Reactor& reactor() { return reactor_; }
  /// False in a forked child and after shut_down().
  bool usable() const { return usable_.load(std::memory_order_relaxed); }

  /// Our NIC for peers of `uid`; null when policy forbids them or memory is short.
  nic::Nic* lane(uid_t uid);
  nic::Nic& own_lane() { return *own_lane_; }
  ContextCounters snapshot();

  // Links.
  /// The link to whoever offers `service` (owned by `uid`), dialled if need be.
  Result<std::shared_ptr<nic::Link>> link_to_service(const std::string& service, uid_t uid,
                                                     std::uint64_t deadline_ns, std::uint32_t* endpoint,
                                                     bool* remembered = nullptr);
  /// The link to whoever offers `service`, and the endpoint behind it, if we have asked before. Null: no.
  std::shared_ptr<nic::Link> known_link(const std::string& service, uid_t uid, std::uint32_t* endpoint);
  /// The steps of dialling for who does not wait (link::begin_dial, link::finish_dial): asks for a service;
  /// makes the link when its process has answered; gives it up.
  Result<link::ShmPeer> begin_dial(const std::string& service, uid_t uid);
  Result<std::shared_ptr<nic::Link>> dialled(link::ShmPeer peer, const std::string& service,
                                             std::uint32_t endpoint);
  void end_dial(const link::ShmPeer& peer);
  /// That endpoint is gone: the next link_to_service() asks the name again. True when it was known.
  bool forget_service(const nic::Link& link, std::uint32_t endpoint);
  /// The link to a node, dialled if need be.
  Result<std::shared_ptr<nic::Link>> link_to_node(NodeId node, uid_t uid, std::uint64_t deadline_ns);
  /// For revocation: is the peer behind this activity slot of a lane still there?
  bool peer_alive(const nic::Nic& nic, std::uint32_t slot);
  /// Takes an aperture of ours away from its peers, waiting for copies under way.
  Status revoke(nic::Nic& nic, std::uint32_t aperture);
  /// The same without waiting for anyone.
  void retire(nic::Nic& nic, std::uint32_t aperture);
  /// A link made elsewhere (tests).
  void add_link(std::shared_ptr<nic::Link> link);
  std::shared_ptr<RegionArena> arena(const nic::Link* link);

  /// Lends this thread to peers that have announced large copies. One load when there are none.
  bool help() {
    fetch();
    return wants_help() && help_slowly();
  }
  /// Fetches packets of other hosts, where there are any: a thread that waits calls it between its looks.
  void fetch() {
    // relaxed: a hint
    if (packet_links_.load(std::memory_order_relaxed)) [[unlikely]] fetch_slowly();
  }
  /// Around a sleep of a thread that has called fetch().
  void before_sleep();
  void after_sleep();
  /// Whether packets of other hosts may have to be fetched.
  bool has_packets() const {
    // relaxed: a hint
    return packet_links_.load(std::memory_order_relaxed) && network_ != nullptr;
  }
  /// Sleeps until `fd` is readable, fetching packets meanwhile: 0, ETIMEDOUT, EINTR. Precondition:
  /// has_packets().
  int sleep_on(int fd, std::uint64_t deadline_ns);
  /// A descriptor is about to be slept on elsewhere: the driver thread has to fetch packets.
  void leave_packets_to_driver();
  /// A glance at whether there is something to help with.
  bool wants_help() const {
    // relaxed: a hint; link->help() acquires
    return own_lane_->image().signals->help_wanted.load(std::memory_order_relaxed) != 0;
  }

  // Endpoints.
  Result<std::uint32_t> add_endpoint(std::weak_ptr<OobSink> sink);
  void remove_endpoint(std::uint32_t endpoint);
  /// Puts `sink` in the place of an endpoint's own and keeps it alive until remove_endpoint().
  void keep_endpoint(std::uint32_t endpoint, std::shared_ptr<OobSink> sink);
  /// Makes an endpoint reachable by name. EADDRINUSE.
  Status add_service(const std::string& service, std::uint32_t endpoint);
  void remove_service(const std::string& service);
  /// Makes endpoints reachable by Address.
  Status listen_as_node();

  /// The endpoint behind a service of ours. False: there is none.
  bool find_service(const std::string& service, std::uint32_t* endpoint);
  /// Other hosts; null where ContextOptions::network is not enabled.
  Network* network() { return network_.get(); }

  ApertureNames& names() { return names_; }

  /// The RDMA engine, made when first asked for.
  Result<RdmaDriver*> rdma();

  // Event queues.
  Result<std::uint32_t> add_queue(EventQueueCore* queue);
  void remove_queue(std::uint32_t queue);
  std::vector<nic::NicImage> lane_images();
  /// The descriptor that wakes sleepers of queue number `queue`: made when first asked for, the same for
  /// every queue that ever has this number, because peers keep it.
  Result<int> queue_fd(std::uint32_t queue);

  // nic::LinkSink
  void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) override;
  void on_transfer_done(std::uint64_t token, int err, std::uint64_t bytes) override;
  void on_link_down(const std::shared_ptr<nic::Link>& link) override;
  void on_misbehaviour(const std::shared_ptr<nic::Link>& link) override;

  // nic::Ringer for our own event queues.
  void ring(std::uint32_t queue) override;

  // Fork: around it in the parent, and in the child.
  void lock_for_fork() {
    mutex_.lock();
    reactor_.lock_for_fork();
  }
  void unlock_after_fork() {
    reactor_.unlock_after_fork();
    mutex_.unlock();
  }
  void abandon_after_fork();

  /// Driver thread: a client has connected to a rendezvous socket.
  void on_client(Fd socket, std::uint32_t endpoint);
  /// Driver thread: a peer rang without knowing the queue's descriptor.
  void ring_all();

 private:
  explicit ContextCore(const ContextOptions& options);
  Status initialise();
  void announce_revoked(const nic::Nic& nic, std::uint32_t aperture, std::uint32_t generation);
  bool allowed(uid_t uid) const;
  void watch_doorbell();
  void announce_queue_fds(nic::Link& link);
  bool help_slowly();
  void fetch_slowly();
  Result<std::shared_ptr<nic::Link>> link_to_host(const std::string& service, uid_t uid,
                                                  std::uint64_t deadline_ns, std::uint32_t* endpoint);
  Result<std::shared_ptr<nic::Link>> dial(const std::string& name, uid_t owner, std::uint64_t deadline_ns,
                                          std::uint32_t* endpoint);
  Result<std::shared_ptr<nic::Link>> link_with(link::ShmPeer peer);
  std::shared_ptr<nic::Link> find_link(NodeId node, uid_t uid);
  Status begin(const std::shared_ptr<link::ShmLink>& link);
  std::vector<std::shared_ptr<OobSink>> sinks();

  const ContextOptions options_;
  NodeId node_;
  uid_t uid_;
  Reactor reactor_;
  CoreCounters counters_;
  std::atomic<bool> usable_{true};
  Fd doorbell_;
  std::atomic<bool> doorbell_watched_{false};
  nic::Nic* own_lane_ = nullptr;

  std::mutex mutex_;
  std::map<uid_t, std::unique_ptr<nic::Nic>> lanes_;
  std::vector<std::shared_ptr<nic::Link>> links_;
  std::atomic<bool> packet_links_{false};  ///< there is or was one whose peer does not map our tables
  std::map<const nic::Link*, std::shared_ptr<RegionArena>> arenas_;
  struct Service {
    std::shared_ptr<Pollable> listener;
    int fd = -1;
    std::uint32_t endpoint = 0;
    std::shared_ptr<Pollable> teller;  ///< tells other processes at which UDP port it is
  };
  std::map<std::string, Service> services_;
  struct Known {
    std::weak_ptr<nic::Link> link;
    std::uint32_t endpoint = 0;
  };
  std::map<std::string, Known> known_services_;
  std::map<std::uint32_t, std::weak_ptr<OobSink>> endpoints_;
  std::map<std::uint32_t, std::shared_ptr<OobSink>> kept_;
  std::uint32_t next_endpoint_ = 1;
  ApertureNames names_;
  std::unique_ptr<Network> network_;
  std::mutex rdma_mutex_;  ///< guards the making of rdma_
  std::unique_ptr<RdmaDriver> rdma_;
  std::vector<EventQueueCore*> queues_;  ///< by number; null: free
  std::vector<Fd> queue_fds_;
  bool listens_as_node_ = false;
};

/// Error for calls on a context that has been shut down or was inherited over fork.
inline Error unusable_error() {
  return Error{ESHUTDOWN, "the context has been shut down or belongs to the parent process"};
}

}  // namespace clan::engine

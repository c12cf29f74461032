// ContextCore: the inside of a Context. Lanes (one NIC per peer user id), the tables of links,
// endpoints, services and event queues, and what spans several of them.
//
// Thread-safety: everything from any thread unless a comment says "driver thread". Each table has a
// lock of its own for the set-up path; data never pass here. The order of locks, all of which a
// fork takes: mutex_, then those of links_, services_, endpoints_, queues_ and reactor_.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/reactor.h"
#include "clan/context.h"
#include "engine/context/context_tables.h"
#include "engine/context/endpoint_table.h"
#include "engine/context/fork_registry.h"
#include "engine/context/link_table.h"
#include "engine/context/packet_wait.h"
#include "engine/context/queue_table.h"
#include "link/shm_link.h"
#include "nic/link.h"
#include "nic/nic.h"

namespace clan::udp {
struct Dialling;
}

namespace clan::engine {

class RdmaDriver;
class Network;

/// Error for calls on a context that has been shut down or was inherited over fork.
inline Error unusable_error() {
  return Error{ESHUTDOWN, "the context has been shut down or belongs to the parent process"};
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

  /// Our NIC for peers of `uid`; null when policy forbids them, or it cannot be made: then `why`.
  nic::Nic* lane(uid_t uid, Error* why = nullptr);
  nic::Nic& own_lane() { return *own_lane_; }
  ContextCounters snapshot();

  // Links.
  LinkTable& links() { return links_; }
  /// The link to the peer that offers `service` (owned by `uid`), dialled if need be.
  Result<std::shared_ptr<nic::Link>> link_to_service(const std::string& service, uid_t uid,
                                                     std::uint64_t deadline_ns,
                                                     std::uint32_t* endpoint);
  /// The steps of a dial that does not wait (link::begin_dial, finish_dial): ask, link, give up.
  Result<link::ShmPeer> begin_dial(const std::string& service, uid_t uid);
  Result<std::shared_ptr<nic::Link>> dialled(link::ShmPeer peer, const std::string& service,
                                             std::uint32_t endpoint);
  void end_dial(const link::ShmPeer& peer);
  /// The same for another host. The driver thread calls `ended` once, with a link known by then.
  using DialEnded = std::function<void(Result<std::shared_ptr<nic::Link>>, std::uint32_t)>;
  Result<std::shared_ptr<udp::Dialling>> begin_far_dial(const std::string& service, uid_t uid,
                                                        DialEnded ended);
  /// The link to a node, dialled if need be.
  Result<std::shared_ptr<nic::Link>> link_to_node(NodeId node, uid_t uid,
                                                  std::uint64_t deadline_ns);
  /// A link made elsewhere (tests), whose peer is believed to be the node that it says it is.
  void add_link(std::shared_ptr<nic::Link> link);
  /// A link with a peer of another host, which is believed if node_claims.h says so.
  void add_far_link(std::shared_ptr<nic::Link> link);

  /// Packets of other hosts, for a thread that waits.
  PacketWait& packets() { return packets_; }
  /// Lends this thread to peers that have announced large copies. One load when there are none.
  bool help() {
    packets_.fetch();
    return help_fetched();
  }
  /// The same for a caller that has just fetched.
  bool help_fetched() {
    return wants_help() && links_.help_one(own_lane_->image().signals->help_wanted);
  }
  /// A glance at whether there is something to help with.
  bool wants_help() const {
    // relaxed: a hint; link->help() acquires
    return own_lane_->image().signals->help_wanted.load(std::memory_order_relaxed) != 0;
  }

  // Endpoints.
  Result<std::uint32_t> add_endpoint(std::weak_ptr<OobSink> sink);
  EndpointTable& endpoints() { return endpoints_; }
  /// Makes an endpoint reachable by name. EADDRINUSE.
  Status add_service(const std::string& service, std::uint32_t endpoint);
  void remove_service(const std::string& service);
  /// Makes endpoints reachable by Address.
  Status listen_as_node();
  using Services = NameTable<std::string, OfferedService>;
  Services& services() { return services_; }
  /// Other hosts; null where ContextOptions::network is not enabled.
  Network* network() { return network_.get(); }

  using NamedApertures = NameTable<std::uint64_t, ShownAperture>;
  NamedApertures& names() { return names_; }

  /// The RDMA engine, made when first asked for.
  Result<RdmaDriver*> rdma();

  // Event queues.
  QueueTable& queues() { return queues_; }
  std::vector<nic::NicImage> lane_images();
  /// The descriptor that wakes sleepers of queue number `queue`, for good: peers keep it.
  Result<int> queue_fd(std::uint32_t queue);

  // nic::LinkSink
  void on_oob(const std::shared_ptr<nic::Link>& link, const OobMessage& message) override;
  void on_transfer_done(std::uint64_t token, int err, std::uint64_t bytes) override;
  void on_link_down(const std::shared_ptr<nic::Link>& link) override;
  void on_misbehaviour(const std::shared_ptr<nic::Link>& link) override;

  // nic::Ringer, for event queues of our own.
  void ring(std::uint32_t queue) override { queues_.ring(queue); }

  // For fork_registry.h. Before the fork: no other thread changes what the child will find.
  void lock_for_fork();
  /// In the parent and in the child.
  void unlock_after_fork();
  /// Closes, in the child, what the parent's context holds; it answers "unusable" from then on.
  void abandon_after_fork();

 private:
  explicit ContextCore(const ContextOptions& options);
  Status initialise();
  bool allowed(uid_t uid) const;
  /// Driver thread: a client of `endpoint`'s rendezvous socket has connected or sent its hello.
  void on_client(Fd socket, std::uint32_t endpoint);
  Result<std::shared_ptr<Acceptor>> listen(const std::string& name, std::uint32_t endpoint);
  std::shared_ptr<nic::Link> keep_link(std::shared_ptr<nic::Link> link);
  Result<std::shared_ptr<nic::Link>> dial(const std::string& name, uid_t owner,
                                          std::uint64_t deadline_ns, std::uint32_t* endpoint);
  Result<std::shared_ptr<nic::Link>> link_with(link::ShmPeer peer);
  Result<std::shared_ptr<nic::Link>> begin_link(link::ShmPeer peer, bool accepted);

  const ContextOptions options_;
  NodeId node_;
  uid_t uid_;
  Reactor reactor_;
  CoreCounters counters_;
  std::atomic<bool> usable_{true};
  Fd doorbell_;
  std::atomic<bool> doorbell_watched_{false};
  nic::Nic* own_lane_ = nullptr;

  std::mutex mutex_;  ///< guards lanes_
  /// Before what may hold the last reference to a link: that gives back what it has of its NIC.
  std::map<uid_t, std::unique_ptr<nic::Nic>> lanes_;
  EndpointTable endpoints_;
  QueueTable queues_;
  PacketWait packets_;
  LinkTable links_;
  Services services_;
  NamedApertures names_;
  std::unique_ptr<Network> network_;
  std::mutex rdma_mutex_;  ///< guards the making of rdma_
  std::unique_ptr<RdmaDriver> rdma_;
};

}  // namespace clan::engine

// Network: a context's UDP node, and the directory by which services of this host are found.
//
//   client --"echo"?--> udp:HOST:4790  the directory: held by whichever context of the user has
//   bound it
//                          | its own service, or asks the process that offers "echo" by an AF_UNIX
//                          | name; of a TCP connection (connection_name.h) that another user
//                          | has, one of that user's
//          <--port 40123---+
//   client --"echo"?--> udp:HOST:40123  the node of that process: a link, and the endpoint of
//   "echo"
//
// No daemon: when the holder ends, another context takes the port over. The directory is a node
// that makes no links, so it answers under the same keys as every other.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/reactor.h"
#include "clan/context.h"
#include "clan/face/network.h"
#include "engine/context/rendezvous.h"
#include "link/udp/node/path_stats_page.h"
#include "link/udp/node/udp_node.h"

namespace clan::engine {

class ContextCore;

class Network {
 public:
  static Result<std::unique_ptr<Network>> start(ContextCore& context,
                                                const NetworkOptions& options);
  Network(ContextCore& context, const NetworkOptions& options);
  ~Network();

  /// "udp:HOST[:PORT]/SERVICE"
  static bool is_remote(const std::string& service) { return service.starts_with("udp:"); }

  /// A new link with the process that offers `service`, and the endpoint behind it.
  Result<std::shared_ptr<nic::Link>> link_to(const std::string& service, std::uint64_t deadline_ns,
                                             std::uint32_t* endpoint);
  /// The same for a caller that does not wait: the driver thread calls `ended`, once.
  using Ended = std::function<void(Result<std::shared_ptr<nic::Link>>, std::uint32_t endpoint)>;
  Result<std::shared_ptr<udp::Dialling>> begin_link_to(const std::string& service, Ended ended);
  /// clan/face/network.h
  Result<PathValues> ping(const std::string& host, std::span<std::uint64_t> round_trips_ns,
                          std::uint32_t interval_ms, std::uint64_t deadline_ns);
  std::uint16_t port() const { return node_->local_address().port; }
  udp::UdpNode& node() { return *node_; }

  /// Tells this user's processes the port of a service of this process. Null: not possible.
  std::shared_ptr<Acceptor> tell_port_of(const std::string& service);

  /// After the reactor has stopped.
  void shut_down();
  void abandon_after_fork();

 private:
  Status start();
  Result<udp::SocketAddress> address_of(std::string host);
  Result<std::shared_ptr<udp::UdpNode>> make_node(const udp::SocketAddress& local, bool directory);
  int find_service(const std::string& service, bool directory, udp::Greeting* answer);
  std::uint16_t ask_user(uid_t user, const std::string& service, const std::string& about,
                         int wait_ms);
  void join_directory(), join_later();
  void holder_ended(std::uint64_t after_ns);
  bool hold_directory();
  bool watch_holder();

  ContextCore& context_;
  const NetworkOptions options_;
  std::unique_ptr<udp::PathStatsPage> path_stats_;  ///< before the node that writes it
  std::shared_ptr<udp::UdpNode> node_;
  std::mutex mutex_;  ///< guards directory_; taken before a node's
  std::shared_ptr<udp::UdpNode> directory_;
  /// What names of hosts have stood for, for the driver thread, which does not ask again.
  std::unordered_map<std::string, udp::SocketAddress> addresses_;
  std::mutex addresses_mutex_;  ///< a leaf
  /// When which services, or users, did not answer: under the directory node's mutex.
  std::unordered_map<std::string, std::uint64_t> silent_;
  unsigned joins_ = 0;  ///< of the directory, without success that lasted
  /// Shows others that we hold the directory. Goes just before it: those that see it want the port.
  std::shared_ptr<Acceptor> holder_;
};

}  // namespace clan::engine

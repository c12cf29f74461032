// Node: the engine of this process, as the transport uses it.
//
// Made when the first endpoint binds or the first client connects, and shared by all connections. A
// forked child does not inherit it: what a child has inherited answers with errors, and its first
// new connection makes a Node of the child's own. ORB::destroy() lets go of it; the last connection
// then ends it.
//
// Thread-safety: everything here may be called from any thread.
#pragma once

#include <clan/context.h>
#include <clan/face/settings.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "traffic.h"

namespace clan::orb {

class ActiveCollection;

/// What the options -ORBclan... ask for.
struct Options {
  bool add_endpoint = false;    ///< add giop:clan: to the endpoints of a server
  bool added_endpoint = false;  ///< it was added: nobody else has asked for it
  /// how long a thread waits awake, at most
  std::uint32_t spin_us = WaitOptions{}.max_spin_us;
  std::uint32_t ring_bytes = 512 * 1024;
  Settings link;  ///< key_file and network_mode, where an option names them
};
Options& options();

/// Other hosts, as the settings and the options want it.
NetworkOptions network_options();

/// CLAN_DISABLE=1: no endpoint, no address, nothing.
bool disabled();

class Node {
 public:
  static Result<std::shared_ptr<Node>> get();
  /// The next get() makes a new one.
  static void release();
  /// Changes in a forked child: what carries another number has been inherited.
  static std::uint32_t generation() {
    // relaxed: a child has one thread when it changes
    return generation_.load(std::memory_order_relaxed);
  }

  explicit Node(Context made);
  ~Node();
  Context& context() { return context_; }
  Traffic& traffic() { return traffic_; }
  /// Connections of clients that a thread of the ORB watches, for bidirectional GIOP. Never
  /// deleted: the ORB keeps the address.
  ActiveCollection& active() { return *active_; }

 private:
  static void after_fork_in_child();
  static std::atomic<std::uint32_t> generation_;
  Context context_;
  Traffic traffic_;
  ActiveCollection* active_;
};

}  // namespace clan::orb

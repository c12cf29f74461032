// LinkTable: a context's links: which one reaches a node or a service, and what is kept for each.
//
//   links       every link, from just before its first message can arrive until its peer is gone
//   far nodes   which peers of other hosts are believed when they say which node they are
//   arenas      link    -> ring memory of its connections
//   services    service -> link and endpoint, for those that were asked for before
//
// Only `links` keeps a link alive: a service remembers it weakly.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/context/node_claims.h"
#include "engine/context/packet_wait.h"
#include "engine/context/region_arena.h"
#include "nic/link.h"

namespace clan::engine {

/// Thread-safe. The lock comes after the context's own and before those of links, which are asked
/// under it; it is not held while a link helps, sends or ends.
class LinkTable {
 public:
  /// The table of the context that is node `own`; notifies `packets` of the first link of packets.
  LinkTable(NodeId own, PacketWait& packets) : own_(own), packets_(packets) {}

  /// A link whose peer is believed to be the node that it says it is.
  void add(std::shared_ptr<nic::Link> link);
  /// Returns, before add() of a link from `address` of another host, whether its peer is believed.
  /// `here`: a process of this host has the number that it claims.
  bool believe(const nic::Link& link, NodeId node, const std::string& address, bool here);
  /// True when the link was there: for one caller.
  bool remove(const std::shared_ptr<nic::Link>& link);
  std::vector<std::shared_ptr<nic::Link>> all();
  /// How many are alive and in use by both ends.
  std::uint64_t settled();

  /// The link to a node, one of this host before others. Null: there is none.
  std::shared_ptr<nic::Link> find(NodeId node, uid_t uid);
  /// The link that takes the place of `made`, one of packets that was just made. Null: none does.
  std::shared_ptr<nic::Link> chosen(const nic::Link& made);
  /// Is the peer behind this activity slot of a NIC still there?
  bool peer_alive(const nic::Nic& nic, std::uint32_t slot);

  /// Returns the link behind service_name() `name`, and its endpoint, if known; or null.
  std::shared_ptr<nic::Link> known(const std::string& name, std::uint32_t* endpoint);
  void remember(const std::string& name, const std::shared_ptr<nic::Link>& link,
                std::uint32_t endpoint);
  /// That endpoint is gone.
  void forget(const nic::Link& link, std::uint32_t endpoint);

  /// Returns the arena of a link; one that is not kept for a link that is not in the table.
  std::shared_ptr<RegionArena> arena(const nic::Link* link);

  /// Takes an aperture of this process away from its peers, waiting for copies under way.
  Status revoke(nic::Nic& nic, std::uint32_t aperture);
  /// The same without waiting for anyone.
  void retire(nic::Nic& nic, std::uint32_t aperture);
  /// Clears the word, and helps one link that wants it; sets the word again if there are more.
  bool help_one(std::atomic<std::uint64_t>& help_wanted);

  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }
  /// In the child, which has one thread.
  void abandon_after_fork();

 private:
  struct Known {
    std::weak_ptr<nic::Link> link;
    std::uint32_t endpoint = 0;
  };

  void announce_revoked(const nic::Nic& nic, std::uint32_t aperture, std::uint32_t generation);

  const NodeId own_;
  PacketWait& packets_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<nic::Link>> links_;
  NodeClaims node_claims_;
  std::map<const nic::Link*, std::shared_ptr<RegionArena>> arenas_;
  std::map<std::string, Known> services_;
};

}  // namespace clan::engine

// NodeClaims: which peers of other hosts are believed when they say which node they are.
//
// Nobody vouches for a number that comes by packets, and every peer of a node knows its number. So
// a number belongs to where it was first seen, this host or one address of another, even after its
// link has gone. A peer that claims it elsewhere is doubted: nothing for the node goes to it, and
// its link replaces no other. Only the names of its services reach it.
//
//   number -> place     "" this host, or "HOST:PORT": a context has one UDP port for its life
//   link   -> claim     the number and the place it came from, and whether that is believed
//
// Not thread-safe: under the lock of LinkTable.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "clan/cookie.h"
#include "nic/link.h"

namespace clan::engine {

class NodeClaims {
 public:
  /// Numbers remembered for which there is no link; of more, all are forgotten.
  static constexpr std::size_t kMostIdle = 4096;

  /// A process of this host has that number.
  void is_here(NodeId node) { (void)place_of(node, ""); }
  /// A peer at `address` says that it is `node`. False: it is doubted.
  bool add(const nic::Link* link, NodeId node, const std::string& address);
  void remove(const nic::Link* link);

  /// Links that were never added are believed: the kernel vouches for them.
  bool believed(const nic::Link* link) const;
  /// Whether that link's peer is known to be `node` at `address`.
  bool is(const nic::Link* link, NodeId node, const std::string& address) const;

 private:
  struct Place {
    std::string address;
    std::size_t links = 0;
  };
  struct Claim {
    std::uint64_t node = 0;
    std::string address;
    bool believed = false;
  };
  Place& place_of(NodeId node, const std::string& address);

  std::unordered_map<std::uint64_t, Place> places_;
  std::unordered_map<const nic::Link*, Claim> claims_;
};

}  // namespace clan::engine

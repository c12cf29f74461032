// How endpoints come together: connections that we ask for, introductions of those that ask us, and
// the one connection of a message endpoint.
//
// Steps only: none waits for longer than kAcceptPatienceMs, none makes progress. What follows from
// a step (a peer to flush, a peer to hang up on) is returned to the transport.
#pragma once

#include <clan/message.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "system/address.h"
#include "transport/peer_table.h"
#include "wire/channel.h"
#include "wire/wire.h"

namespace clan::ofi {

class Endpoint;

/// The address of a Hello. Not valid(): the sender speaks another version, or none.
SocketAddress introduced_as(std::span<const std::byte> bytes);

/// A peer that we are connecting to has connected to us. Whether our attempt is to be given up: of
/// two that connect to each other, the one with the greater name does that, and an attempt that
/// carries a message of introduce() is kept.
bool gives_way(const Peer& peer, const Name& own);

/// Those that have introduced themselves to a message endpoint, and have not said why yet.
class Unverified {
 public:
  static constexpr std::size_t kMost = 16;
  /// False: there are too many, or this one is known.
  bool add(PeerIndex index, const SocketAddress& address);
  /// The address of one, null if it is unknown.
  const SocketAddress* find(PeerIndex index) const;
  void remove(PeerIndex index);
  bool empty() const { return entries_.empty(); }
  PeerIndex last() const { return entries_.back().index; }

 private:
  struct Entry {
    PeerIndex index;
    SocketAddress address;
  };
  std::vector<Entry> entries_;
};

class Handshake {
 public:
  Handshake(Channel& channel, PeerTable& peers) : channel_(channel), peers_(peers) {}

  /// Message endpoints: from now on only introduce() connects.
  void only_introduce() { connects_ = false; }
  bool connects() const { return connects_; }

  /// Asks for a connection. The end that connects introduces itself; `first`, if any, follows at
  /// once. The driver threads see to it that both get there, whether or not the program makes
  /// progress. 0 or -FI_...
  int begin(Peer& peer, std::span<const std::byte> first);
  /// Waits a moment until the peer has accepted; not at all when that was of no use lately.
  void wait_briefly(Peer& peer);
  /// EAGAIN: it has yet to accept; or why it never will.
  Status accepted(Peer& peer) { return channel_.messages->await(peer.pending, 0); }
  /// From now on all that is sent to the peer goes by this connection.
  void use(Peer& peer, PeerIndex index);
  /// A connection that the peer has yet to accept is not needed any more.
  void give_up(Peer& peer);
  void drop_connection(PeerIndex index);

  /// What a message of a sender that is no peer yet leads to.
  struct Outcome {
    Peer* flush = nullptr;    ///< it may have waited for this connection
    Peer* hang_up = nullptr;  ///< it is not needed any more
  };
  /// `endpoint`: of a message endpoint, which has one peer, by the connection that it has made or
  /// been granted; nobody else is heard, by whatever name. Null where there is none.
  Outcome arrived(PeerIndex from, const WireHeader& header, std::span<const std::byte> bytes,
                  Endpoint* endpoint);
  /// The passive endpoint that `endpoint` has asked by this connection; null: it has not.
  static Peer* asked_by(const Endpoint* endpoint, PeerIndex index);
  void forget_unverified(PeerIndex index) { unverified_.remove(index); }
  std::uint64_t turned_away() const { return turned_away_; }

 private:
  Outcome arrived_hello(PeerIndex from, std::span<const std::byte> bytes);
  std::optional<Outcome> arrived_acceptance(PeerIndex from, const WireHeader& header,
                                            std::span<const std::byte> bytes, Endpoint& endpoint);
  bool arrived_introduction(PeerIndex from, std::span<const std::byte> bytes);
  void turn_away(PeerIndex stranger);

  Channel& channel_;
  PeerTable& peers_;
  std::uint64_t impatient_until_ = 0;  ///< no first message waits until then (CLOCK_MONOTONIC)
  Unverified unverified_;
  /// messages of peers that a message endpoint is not connected with
  std::uint64_t turned_away_ = 0;
  bool connects_ = true;
};

}  // namespace clan::ofi

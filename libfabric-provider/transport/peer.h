// What an endpoint knows of one peer. Each room of the transport owns a part of it, named beside
// it.
#pragma once

#include <clan/aperture.h>
#include <clan/message.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "system/address.h"
#include "wire/reply_queue.h"
#include "wire/slow_copy.h"

namespace clan::ofi {

class LongAtomic;
struct SmallAccesses;

inline constexpr PeerIndex kNoPeer = ~PeerIndex{0};

/// A peer's region that we have looked up.
struct RemoteRegion {
  RemoteAperture aperture;
  std::uint64_t base = 0;
  bool tell_owner = false;
  std::vector<RemoteAperture> pieces;  ///< one behind the other, in place of `aperture`; or empty
};

struct Peer {
  Peer();
  ~Peer();

  Name name;

  // Connections: handshake.h. Which of them there are is PeerTable's.
  PeerIndex index = kNoPeer;      ///< the connection that we send by
  PeerIndex open = kNoPeer;       ///< the same, while there are no barriers
  PeerIndex pending = kNoPeer;    ///< the one that the peer has yet to accept
  std::uint32_t connections = 0;  ///< by either side, those two among them
  bool introduced = false;        ///< `pending` carries a message of introduce()
  int failure = 0;                ///< of the last attempt to connect, for the next send
  std::uint64_t node = 0;
  std::uint32_t uid = 0;
  SocketAddress raw;  ///< as the peer has introduced itself

  // PeerTable.
  mutable bool referenced = false;       ///< something refers to it: it must not be forgotten
  fi_addr_t address = FI_ADDR_NOTAVAIL;  ///< in the address vector, as of `generation`
  std::uint32_t generation = 0;

  // OperationTable.
  std::uint32_t barriers = 0;      ///< operations under way that nothing may overtake
  std::uint64_t reply_credit = 0;  ///< bytes of replies that the peer owes us: see kMostOwed
  std::uint32_t atomics = 0;       ///< without a reply so far
  std::uint64_t atomics_sent = 0;  ///< ever; replies come in their order

  // ReplyQueue; atomic_service.h.
  Replies replies;
  std::unique_ptr<LongAtomic> long_atomic;  ///< the peer's, that waits for room for its results

  // RemoteMemory; small_access.h.
  std::unordered_map<std::uint64_t, RemoteRegion> regions;
  std::unique_ptr<SmallAccesses> accesses;  ///< null: there have been none
  std::unique_ptr<SlowCopies> slow;
  std::uint32_t far_reads = 0, far_writes = 0;  ///< under way: far_memory.h
  Silence silence;                              ///< its driver thread did not answer

  void send_by(PeerIndex connection) {
    index = connection;
    open = barriers == 0 ? index : kNoPeer;
  }
  void forget_replies();
};

}  // namespace clan::ofi

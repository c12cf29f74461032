// Receives into which senders of other hosts write.
//
//   sender                                     receiver
//     kMessage, FarOffer   ──────────────────>   matched as any message; unexpected: kept, without
//                                                bytes, until a receive is posted
//                          <──────────────────   kPlace: cookies of the receive's pieces, which are
//     RDMA                 ──────────────────>   apertures from now on
//     kPlaced              ──────────────────>   no apertures any more: the receive is complete
//
// A sender can write there what and when it likes until then, and not after; nowhere else. When it
// dies, or its connection ends, the receive ends with an error. Everything is under the domain's
// lock.
#pragma once

#include <clan/aperture.h>

#include <cstdint>
#include <list>
#include <vector>

#include "transport/peer.h"
#include "wire/matching.h"

namespace clan::ofi {

class Domain;

/// One, of a message whose first bytes may be in it already.
struct FarReceive {
  std::uint64_t number = 0;  ///< that the sender names; never used again
  Peer* from = nullptr;
  PeerIndex by = 0;  ///< the connection that the offer came by
  WireHeader header;
  Endpoint* to = nullptr;
  ReceiveQueue* queue = nullptr;
  ReceiveQueue::Kind kind = ReceiveQueue::kUntagged;
  Posted* posted = nullptr;
  std::size_t begin = 0, length = 0;  ///< where in it the message lies
  std::uint64_t missing = 0;          ///< bytes for which there is no room
  std::vector<Aperture> places;       ///< gone: nobody can write there any more
};

/// What is said to the sender, as it travels.
struct PlaceMessage {
  WireHeader header{.op = Op::kPlace};
  PlaceReply reply;
  RdmaCookie cookies[kIovLimit];
};

class FarReceives {
 public:
  explicit FarReceives(Domain& domain) : domain_(domain) {}

  bool empty() const { return receives_.empty(); }
  FarReceive& add();
  /// Lets peers write to the next `length` bytes of its receive. `message`: what its sender needs
  /// to know. 0, or errno: then nothing is open.
  int open(FarReceive& receive, std::size_t length, PlaceMessage* message);

  /// Takes those that are `wanted`, so that nobody writes there any more, and then calls
  /// end(receive) for each.
  template <typename Wanted, typename End>
  void take(Wanted&& wanted, End&& end) {
    std::list<FarReceive> taken;
    for (auto it = receives_.begin(); it != receives_.end();) {
      const auto next = std::next(it);
      if (wanted(std::as_const(*it))) taken.splice(taken.end(), receives_, it);
      it = next;
    }
    for (FarReceive& receive : taken) {
      receive.places.clear();
      end(receive);
    }
  }
  template <typename F>
  void for_each(F&& f) const {
    for (const FarReceive& receive : receives_) f(receive);
  }

 private:
  Domain& domain_;
  std::list<FarReceive> receives_;
  std::uint64_t last_ = 0;
};

}  // namespace clan::ofi

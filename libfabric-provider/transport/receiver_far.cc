// Messages of other hosts that their senders keep until a receive is there for them.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "objects/endpoint.h"
#include "transport/receiver.h"
#include "wire/pieces.h"

namespace clan::ofi {
namespace {

ReceiveQueue::Kind kind_of(const WireHeader& header) {
  return header.op == Op::kTagged ? ReceiveQueue::kTagged : ReceiveQueue::kUntagged;
}

}  // namespace

Receiver::Taken Receiver::arrived_far(Peer& peer, PeerIndex by, const WireHeader& header,
                                      const FarOffer& offer) {
  Endpoint* const endpoint = this->endpoint(header.context);
  if (endpoint == nullptr && header.context >= contexts_) return Taken::kInFront;
  const auto kind = kind_of(header);
  if (endpoint != nullptr) {
    ReceiveQueue& queue = endpoint->receives();
    Posted* const posted = kind == ReceiveQueue::kTagged ? queue.match_tagged(&peer, header.tag)
                                                         : queue.match_message(&peer);
    if (posted != nullptr) {
      begin_far(*endpoint, peer, by, header, offer, *posted, queue, kind);
      return Taken::kInFront;
    }
  }
  List<Unexpected>& keep = endpoint != nullptr ? endpoint->receives().unexpected(kind) : unclaimed_;
  Taken otherwise;
  Unexpected* const kept = make_unexpected(endpoint, true, 0, keep, &otherwise);
  if (kept == nullptr) return otherwise;
  kept->to = endpoint;
  kept->from = &peer;
  kept->header = header;
  kept->size = offer.length;
  kept->offered = true;
  kept->aside.from = by;
  kept->far = offer;
  keep.push_back(*kept);
  return Taken::kInFront;
}

// Nothing of a message is wanted.
void Receiver::decline(Peer& peer, const WireHeader& header, const FarOffer& offer) {
  PlaceMessage message;
  message.header.id = header.id;
  message.reply.number = offer.number;
  replies_.send(peer, bytes_of(message).first(sizeof message.header + sizeof message.reply));
}

// Its sender may write the message to the receive, which is in the list.
void Receiver::begin_far(Endpoint& endpoint, Peer& peer, PeerIndex by, const WireHeader& header,
                         const FarOffer& offer, Posted& posted, ReceiveQueue& queue,
                         ReceiveQueue::Kind kind) {
  const std::size_t n = std::min<std::size_t>(offer.length, posted.length - posted.used);
  FarReceive& receive = far_.add();
  receive.from = &peer;
  receive.by = by;
  receive.header = header;
  receive.to = &endpoint;
  receive.queue = &queue;
  receive.kind = kind;
  receive.posted = &posted;
  receive.begin = posted.used;
  receive.length = n;
  receive.missing = offer.length - n;
  PlaceMessage message;
  message.header.id = header.id;
  message.reply.number = offer.number;
  const int err = far_.open(receive, n, &message);

  ++posted.writers;
  posted.used += n;
  const bool multiple = (posted.flags & FI_MULTI_RECV) != 0;
  if (!multiple || posted.length - posted.used < posted.least) {
    queue.posted(kind).remove(posted);
    posted.given_up = true;
  }
  const std::size_t places = message.reply.count * sizeof(RdmaCookie);
  replies_.send(peer,
                bytes_of(message).first(sizeof message.header + sizeof message.reply + places));
  if (message.reply.count > 0) return;
  // Its sender takes that for delivered, and the receive says what has been wrong.
  if (err != 0 && (header.flags & kWantsAck) != 0) acknowledge(peer, header);
  const std::uint64_t number = receive.number;
  far_.take([&](const FarReceive& one) { return one.number == number; },
            [&](FarReceive& one) { finish_far(one, err); });
}

void Receiver::placed(PeerIndex by, std::uint64_t number, int err) {
  far_.take([&](const FarReceive& receive) { return receive.number == number && receive.by == by; },
            [&](FarReceive& receive) { finish_far(receive, err); });
}

void Receiver::end_far(PeerIndex by, int err) {
  far_.take([&](const FarReceive& receive) { return receive.by == by; },
            [&](FarReceive& receive) { finish_far(receive, err); });
}

}  // namespace clan::ofi

// Long messages to other hosts, at both ends: offered, placed, written (far_receives.h).
#include <algorithm>
#include <cerrno>
#include <utility>

#include "objects/domain.h"
#include "objects/endpoint.h"
#include "transport/far_message.h"
#include "transport/transport.h"
#include "wire/pieces.h"

namespace clan::ofi {

// --- at the sender -------------------------------------------------------------------------------

ssize_t Transport::send_offer(Endpoint& from, Peer& to, const SendRequest& request) {
  constexpr std::size_t kCost = kAnswerCost + sizeof(PlaceMessage);
  if (!may_ask(to, kCost)) return -FI_EAGAIN;
  Operation& operation = operations_.make(&from, to, request);
  std::copy_n(request.iov, request.count, operation.results);
  operation.result_count = static_cast<std::uint32_t>(request.count);
  WireHeader header = request.header;
  header.id = operation.id;
  header.flags |= request.delivery ? kOffered | kWantsAck : kOffered;
  const FarOffer offer{request.length, operation.generation};
  const ssize_t rc = send_after_progress(to, header, &offer, sizeof offer);
  if (rc != 0) {
    operations_.release(operation);
    return rc;
  }
  operation.waits_for_answer = true;
  operation.answer = Op::kPlace;
  operations_.charge(operation, kCost, false);
  return 0;
}

// The receiver says where a message goes.
void Transport::arrived_place(Peer& peer, const WireHeader& header,
                              std::span<const std::byte> bytes) {
  Operation* const operation = operations_.answered(header.id, peer, Op::kPlace);
  PlaceReply reply;
  if (operation == nullptr || !take_front(bytes, &reply) || reply.number != operation->generation)
    return;
  const int err = send_to_place(*operation, reply, bytes);
  operation->waits_for_answer = operation->delivery && err == 0;
  operation->answer = Op::kAck;
  if (err != 0) {
    SlowCopies nothing;
    nothing.err = err;
    nothing.operation = operation;
    nothing.receive = reply.receive;
    end_message(nothing);
  } else {
    operations_.settle(*operation);
  }
}

// 0, or errno: nothing is written.
int Transport::send_to_place(Operation& operation, const PlaceReply& reply,
                             std::span<const std::byte> cookies) {
  if (reply.count == 0) return 0;
  if (operation.owner == nullptr) return ECANCELED;  // its memory is its program's again
  const std::span pieces(operation.results, operation.result_count);
  std::uint64_t length = 0;
  for (const iovec& piece : pieces) length += piece.iov_len;
  Places places;
  if (reply.receive == 0 || !read_places(*operation.peer, length, reply, cookies, &places))
    return EPROTO;
  auto message = route(domain_.context(), *operation.peer, pieces, places);
  if (!message) return message.error().err;
  SlowCopies copies;
  copies.operation = &operation;
  copies.write = true;
  copies.receive = reply.receive;
  operation.waits_for_copy = true;
  far_.begin_message(*operation.peer, std::move(*message), std::move(copies));
  return 0;
}

// All of it has been written, or no more of it will be.
void Transport::end_message(const SlowCopies& message) {
  Operation& operation = *message.operation;
  const WireHeader placed{
      .op = Op::kPlaced, .tag = message.receive, .data = static_cast<std::uint64_t>(message.err)};
  replies_.send(*operation.peer, bytes_of(placed));
  operation.waits_for_copy = false;
  if (message.err != 0) {
    operation.waits_for_answer = false;
    // ESTALE: the receiver has taken its buffer back
    operation.err = message.err == ESTALE ? ECONNRESET : message.err;
  }
  operations_.settle(operation);
}

// --- at the receiver -----------------------------------------------------------------------------

Receiver::Taken Transport::arrived_offer(Peer& peer, const WireHeader& header,
                                         std::span<const std::byte> bytes, PeerIndex from) {
  FarOffer offer;
  if (peer.name.local() || !take_front(bytes, &offer) || offer.length == 0 ||
      offer.length > kMaxMessage) {
    return Receiver::Taken::kInFront;
  }
  return receiver_.arrived_far(peer, from, header, offer);
}

}  // namespace clan::ofi

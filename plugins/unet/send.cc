// The send queue: each descriptor is gathered into the peer's ring, or into its area.
#include "endpoint.h"

namespace clan::unet::library {
namespace {

int bytes_of(const unet_send& d, std::size_t* bytes) {
  *bytes = d.bytes;
  if (d.pieces == 0) return d.bytes <= UNET_INLINE ? 0 : EMSGSIZE;
  if (d.pieces > UNET_PIECES) return EINVAL;
  *bytes = 0;
  for (unsigned i = 0; i < d.pieces; ++i) *bytes += d.u.piece[i].bytes;
  return 0;
}

}  // namespace

// All that can go now. Descriptors end in any order, as one channel may be stuck; the program takes
// them back in order.
int Endpoint::pump() {
  const std::uint32_t end = added(indices->send_added);
  if (first_send_ == end) return 0;
  if (end - first_send_ > send_entries) return EINVAL;
  ++round_;
  deferred_ = false;
  for (std::uint32_t i = first_send_; i != end; ++i) {
    unet_send& d = sends[i & (send_entries - 1)];
    if (d.status != UNET_PENDING) continue;
    if (flies_ && i != flyer_) continue;
    int status = 0;
    const Outcome outcome = start(d, &status);
    if (outcome == Outcome::kStuck) continue;
    if (outcome == Outcome::kDeferred) {
      flyer_ = i;
      break;
    }
    __atomic_store_n(&d.status, status, __ATOMIC_RELEASE);
  }
  while (first_send_ != end && sends[first_send_ & (send_entries - 1)].status != UNET_PENDING)
    ++first_send_;
  return 0;
}

int Endpoint::gather(const unet_send& d, std::byte* to) {
  if (d.pieces == 0) copy_short(to, d.u.data, d.bytes);
  for (unsigned i = 0; i < d.pieces; ++i) {
    const unet_piece& piece = d.u.piece[i];
    if (const int error = fetch(to, piece.at, piece.bytes); error != 0) return error;
    to += piece.bytes;
  }
  return 0;
}

Endpoint::Outcome Endpoint::defer() {
  count(row_->deferrals);
  deferred_ = true;
  return Outcome::kDeferred;
}

Endpoint::Outcome Endpoint::stick(Channel& channel) {
  channel.stuck = round_;
  return Outcome::kStuck;
}

void Endpoint::count_sent(std::size_t bytes) {
  count(row_->sent);
  count(row_->sent_bytes, bytes);
}

Endpoint::Outcome Endpoint::start(unet_send& d, int* status) {
  std::size_t bytes = 0;
  Channel* const channel = find(d.tag);
  if (channel == nullptr || !channel->has_peer()) {
    *status = EACCES;
  } else if (!channel->usable()) {
    *status = channel->reason != 0 ? channel->reason : EPIPE;
  } else {
    *status = bytes_of(d, &bytes);
  }
  if (*status != 0) {
    abandon_flight();
    return Outcome::kDone;
  }
  if (channel->stuck == round_) return Outcome::kStuck;
  if (!port_->clear()) return stick(*channel);
  return (d.flags & UNET_DIRECT) != 0 ? start_direct(d, *channel, bytes, status)
                                      : start_message(d, *channel, bytes, status);
}

// Data that lie in one place here and cannot be missing: behind their head at once.
Endpoint::Outcome Endpoint::put(Channel& channel, std::span<const std::byte> head,
                                std::span<const std::byte> data, std::size_t bytes, int* status) {
  const Status sent = port_->messages.try_send(channel.peer, head, data);
  *status = sent ? 0 : sent.error().err;
  if (sent) count_sent(bytes);
  return *status == EAGAIN ? stick(channel) : Outcome::kDone;
}

Endpoint::Outcome Endpoint::start_message(const unet_send& d, Channel& channel, std::size_t bytes,
                                          int* status) {
  const Head head{Kind::kData, {}, channel.number};
  if (d.pieces == 0 || (d.pieces == 1 && mode_ == UNET_AREA)) {
    const void* data = d.u.data;
    if (d.pieces == 1) *status = locate(d.u.piece[0], &data);
    if (*status != 0) return Outcome::kDone;
    return put(channel, std::as_bytes(std::span(&head, 1)),
               {static_cast<const std::byte*>(data), bytes}, bytes, status);
  }
  const auto room = port_->messages.reserve(channel.peer, sizeof head + bytes);
  if (!room) {
    *status = room.error().err;
    return *status == EAGAIN ? stick(channel) : Outcome::kDone;
  }
  *status = gather(d, room->data() + sizeof head);
  if (*status == EAGAIN) return defer();
  if (*status != 0) return Outcome::kDone;
  // Last: the TLB's lock would wait until the peer has given up this line.
  std::memcpy(room->data(), &head, sizeof head);
  port_->messages.commit(channel.peer, sizeof head + bytes);
  count_sent(bytes);
  return Outcome::kDone;
}

}  // namespace clan::unet::library

// Direct access: the data go into the peer's area, and a record behind them says so. By stores on
// one host; by RDMA to another one, where the endpoint's later sends wait for them.
#include "endpoint.h"

namespace clan::unet::library {

int Endpoint::import_area(Channel& channel) {
  if (channel.direct) return 0;
  if (channel.area.rights == Rights::kNone) return EOPNOTSUPP;
  constexpr std::int64_t kPatienceMs = 10'000;
  auto memory = RemoteAperture::import(node().context, channel.area, kPatienceMs);
  if (!memory) return memory.error().err;
  channel.direct.emplace(std::move(*memory));
  return 0;
}

Endpoint::Outcome Endpoint::start_direct(const unet_send& d, Channel& channel, std::size_t bytes,
                                         int* status) {
  if (flies_) return land(d, channel, bytes, status);
  if (channel.state == Channel::State::kConnecting) return stick(channel);  // its area is not known
  *status = import_area(channel);
  if (*status == 0 &&
      (d.offset > channel.direct->size() || bytes > channel.direct->size() - d.offset))
    *status = ERANGE;
  if (*status != 0) return Outcome::kDone;
  std::byte* const there = channel.direct->data();
  if (there == nullptr) return fly(d, channel, status);
  // Written again where there was no room to say so.
  *status = gather(d, there + d.offset);
  if (*status == EAGAIN) return defer();
  if (*status == 0 && bytes > 0) {
    const Status written = channel.direct->wrote(d.offset, bytes);
    if (!written) *status = written.error().err;
  }
  return *status == 0 ? tell_direct(d, channel, bytes, status) : Outcome::kDone;
}

Endpoint::Outcome Endpoint::tell_direct(const unet_send& d, Channel& channel, std::size_t bytes,
                                        int* status) {
  DirectRecord record;
  record.head.number = channel.number;
  record.offset = d.offset;
  record.bytes = static_cast<std::uint32_t>(bytes);
  return put(channel, std::as_bytes(std::span(&record, 1)), {}, bytes, status);
}

// Data in the descriptor stay there until the send is done.
Endpoint::Outcome Endpoint::fly(const unet_send& d, Channel& channel, int* status) {
  constexpr std::uint32_t kDepth = 8;  // a power of two; one send at a time
  static_assert(UNET_PIECES <= kDepth);
  if (!rdma_) {
    auto queue = RdmaQueue::create(node().context, kDepth);
    *status = queue.ok() ? 0 : queue.error().err;
    if (*status != 0) return Outcome::kDone;
    rdma_.emplace(std::move(*queue));
  }
  flight_ = {};
  std::uint64_t offset = d.offset;
  const unsigned pieces = std::max<unsigned>(d.pieces, 1);
  for (unsigned i = 0; i < pieces && flight_.status == 0; ++i) {
    const std::size_t n = d.pieces == 0 ? d.bytes : d.u.piece[i].bytes;
    const void* from = d.u.data;
    if (d.pieces > 0) flight_.status = locate(d.u.piece[i], &from);
    if (flight_.status != 0) break;
    const Status posted = rdma_->write(*channel.direct, offset, from, n);
    if (!posted) flight_.status = posted.error().err;
    flight_.requests += posted.ok() ? 1 : 0;
    offset += n;
  }
  flies_ = true;
  std::size_t bytes = static_cast<std::size_t>(offset - d.offset);
  return land(d, channel, bytes, status);
}

// kDeferred until the peer has the data, then kStuck until it has the record.
Endpoint::Outcome Endpoint::land(const unet_send& d, Channel& channel, std::size_t bytes,
                                 int* status) {
  std::array<RdmaCompletion, UNET_PIECES> done;
  const std::size_t n = flight_.requests == 0 ? 0 : rdma_->poll(done);
  for (std::size_t i = 0; i < n; ++i) {
    if (flight_.status == 0) flight_.status = done[i].status;
  }
  flight_.requests -= static_cast<std::uint32_t>(n);
  if (flight_.requests > 0) return Outcome::kDeferred;
  *status = flight_.status;
  const Outcome told = *status == 0 ? tell_direct(d, channel, bytes, status) : Outcome::kDone;
  flies_ = told != Outcome::kDone;
  return told == Outcome::kStuck ? Outcome::kDeferred : told;
}

// The send that is under way has lost its channel. Its memory is the program's again.
void Endpoint::abandon_flight() {
  if (!flies_) return;
  flies_ = false;
  rdma_.reset();
}

}  // namespace clan::unet::library

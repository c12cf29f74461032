#include "transport/far_receives.h"

#include <cerrno>
#include <new>

#include "objects/domain.h"
#include "wire/pieces.h"

namespace clan::ofi {

FarReceive& FarReceives::add() {
  FarReceive& receive = receives_.emplace_back();
  receive.number = ++last_;
  return receive;
}

int FarReceives::open(FarReceive& receive, std::size_t length, PlaceMessage* message) {
  int err = 0;
  const Posted& posted = *receive.posted;
  const auto open_piece = [&](std::span<std::byte> piece, std::size_t) {
    if (err != 0) return;
    auto place = Aperture::export_region(domain_.context(), piece, Rights::kWrite);
    if (!place) {
      err = place.error().err;
      return;
    }
    message->cookies[message->reply.count++] = place->cookie();
    receive.places.push_back(std::move(*place));
  };
  try {
    for_each_piece(posted.iov, posted.pieces, posted.used, length, open_piece);
  } catch (const std::bad_alloc&) {
    err = ENOMEM;
  }
  if (err != 0) {
    receive.places.clear();
    message->reply.count = 0;
  }
  message->reply.receive = receive.number;
  return err;
}

}  // namespace clan::ofi

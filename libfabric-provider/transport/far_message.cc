#include "transport/far_message.h"

#include <cstring>

#include "transport/peer.h"
#include "wire/overlap.h"

namespace clan::ofi {

bool read_places(const Peer& receiver, std::uint64_t length, const PlaceReply& reply,
                 std::span<const std::byte> cookies, Places* places) {
  if (reply.count > kIovLimit || cookies.size() != reply.count * sizeof(RdmaCookie)) return false;
  places->count = reply.count;
  std::memcpy(places->cookies.data(), cookies.data(), cookies.size());
  for (const RdmaCookie& cookie : std::span(places->cookies).first(reply.count)) {
    // Memory of a third process would be written by our right, not by the receiver's.
    if (cookie.node.value != receiver.node || cookie.length == 0 || cookie.length > length ||
        !includes(cookie.rights, Rights::kWrite)) {
      return false;
    }
    length -= cookie.length;
  }
  return true;
}

Result<FarMessage> route(Context& context, const Peer& receiver, std::span<const iovec> message,
                         const Places& places) {
  FarMessage routed;
  fi_rma_iov remote[kIovLimit];
  for (std::size_t i = 0; i < places.count; ++i) {
    auto place = RemoteAperture::import(context, places.cookies[i], 0, receiver.uid);
    if (!place) return place.error();
    routed.places.push_back(std::move(*place));
    remote[i] = {.addr = 0, .len = places.cookies[i].length, .key = i};
  }
  (void)for_each_overlap(
      message, std::span(remote).first(places.count),
      [&](std::byte* local, std::size_t length, std::uint64_t place, std::uint64_t offset) {
        routed.parts.push_back({local, length, place, offset});
        return 0;
      });
  return routed;
}

}  // namespace clan::ofi

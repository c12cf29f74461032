// A long message to another host, at its sender: what its receiver has said of where it goes, and
// the way there.
#pragma once

#include <clan/aperture.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "system/info.h"
#include "wire/wire.h"

namespace clan::ofi {

struct Peer;

/// A message on its way to the pieces of a receive.
struct FarMessage {
  struct Part {
    const std::byte* local = nullptr;
    std::size_t length = 0;
    std::size_t place = 0;  ///< which of `places`
    std::uint64_t offset = 0;
  };
  std::vector<RemoteAperture> places;
  std::vector<Part> parts;
};

/// The cookies behind a PlaceReply.
struct Places {
  std::array<RdmaCookie, kIovLimit> cookies{};
  std::size_t count = 0;
};

/// False: they make no sense, or are not the receiver's own to give. `length`: of the message.
bool read_places(const Peer& receiver, std::uint64_t length, const PlaceReply& reply,
                 std::span<const std::byte> cookies, Places* places);

/// Which bytes go where. An error: the places cannot be reached.
Result<FarMessage> route(Context& context, const Peer& receiver, std::span<const iovec> message,
                         const Places& places);

}  // namespace clan::ofi

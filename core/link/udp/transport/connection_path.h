// PathQuestion: the part of a Connection by which a peer that comes from another address shows
// that it is there: CHALLENGE and RESPONSE (docs/wire.md).
#pragma once

#include <cstdint>

#include "link/udp/wire/socket_address.h"

namespace clan::udp {

struct PathQuestion {
  SocketAddress candidate_;      ///< where the peer may have moved to
  std::uint64_t challenge_ = 0;  ///< 0: none
  bool challenge_to_send_ = false;
  unsigned challenges_ = 0;
  std::uint64_t response_ = 0;
  bool response_to_send_ = false;
};

}  // namespace clan::udp

// HandshakeState: what a connection needs until it is established, and is then given back.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "link/udp/wire/security.h"

namespace clan::udp {

struct HandshakeState {
  std::vector<std::byte> packet;    ///< client: HELLO; server: ACCEPT; sent again as it is
  std::size_t signed_bytes = 0;     ///< of it: what the MAC covers
  std::vector<std::byte> greeting;  ///< the peer's, for on_established
  std::unique_ptr<KeyShare> share;
  bool cookie_seen = false;  ///< client: a RETRY has come
};

}  // namespace clan::udp

// EndpointNotes: the part of a Connection that belongs to its Endpoint: keys, the handshake, its
// place among the timers and among those that send.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "link/udp/transport/connection_options.h"
#include "link/udp/wire/security.h"
#include "link/udp/wire/wire.h"

namespace clan::udp {

struct HandshakeState;

struct EndpointNotes {
  const std::function<std::uint64_t()>* random_ = nullptr;  ///< the endpoint's, for challenges
  Mode mode_ = Mode::kOff;
  std::unique_ptr<Session> session_;
  std::size_t heap_index_ = ~std::size_t{0};
  std::uint64_t heap_time_ = kNever;
  bool queued_ = false;
  std::uint64_t deadline_ = kNever;  ///< of the handshake
  std::uint64_t hello_at_ = kNever;
  std::uint64_t hello_wait_ = 0;
  std::unique_ptr<HandshakeState> handshake_;
};

}  // namespace clan::udp

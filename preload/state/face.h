// The words of a pipe's page that both ends share (clan/face/socket_face.h).
#pragma once

#include <atomic>
#include <cstdint>

#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"

namespace clan::preload {

inline std::uint64_t state_of(const PipePage::Face& face) {
  return face.words[socket_face::kState].load(std::memory_order_acquire);  // PAIR face.state
}

/// Sets `bits`, and publishes what was written before.
inline void add_state(PipePage::Face& face, std::uint64_t bits) {
  face.words[socket_face::kState].fetch_or(bits, std::memory_order_acq_rel);  // PAIR face.state
}

}  // namespace clan::preload

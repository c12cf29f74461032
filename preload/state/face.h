// The words that both ends of a pipe see of each other (clan/face/socket_face.h), by what they
// mean.
#pragma once

#include <atomic>
#include <cstdint>

#include "clan/face/pipe.h"
#include "clan/face/socket_face.h"

namespace clan::preload {

inline std::uint64_t state_of(const PipePage::Face& face) {
  return face.words[socket_face::kState].load(std::memory_order_acquire);  // PAIR face.state
}

/// What was written before is seen by an end that sees the bits.
inline void add_state(PipePage::Face& face, std::uint64_t bits) {
  face.words[socket_face::kState].fetch_or(bits, std::memory_order_acq_rel);  // PAIR face.state
}

}  // namespace clan::preload

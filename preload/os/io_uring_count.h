// Rings of io_uring that this process has: while there is one, its connections stay on TCP
// (share/uring.h).
#pragma once

#include <atomic>

namespace clan::preload {

/// Rings that may name a descriptor, as far as the library knows.
inline std::atomic<int> open_rings{0};
// PAIR preload.rings
inline bool rings_alive() { return open_rings.load(std::memory_order_acquire) > 0; }

}  // namespace clan::preload

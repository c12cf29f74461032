// Messages of AF_UNIX sockets that carry descriptors (SCM_RIGHTS).
#pragma once

#include <cstddef>

namespace clan::preload {

/// Sends a message with descriptors, which stay the caller's. Does not wait.
bool send_descriptors(int to, const void* message, std::size_t size, const int* fds, int count);

/// Receives a message of exactly `size` bytes with `count` or `most` descriptors. Does not wait.
/// Returns the number of descriptors; 0: no message yet; -1: another message, whose descriptors it
/// closes, or the peer is gone.
int receive_descriptors(int from, void* message, std::size_t size, int* fds, int count,
                        int most = 0);

}  // namespace clan::preload

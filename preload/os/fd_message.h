// Messages of AF_UNIX sockets that carry descriptors (SCM_RIGHTS).
#pragma once

#include <cstddef>

namespace clan::preload {

/// Sends a message with descriptors, which stay ours. Does not wait.
bool send_descriptors(int to, const void* message, std::size_t size, const int* fds, int count);

/// Receives one of exactly `size` bytes and `count` descriptors, or `most` of them; what differs is
/// closed. Does not wait. >0: how many it has received. 0: none yet. -1: something else, or nobody
/// is there any more.
int receive_descriptors(int from, void* message, std::size_t size, int* fds, int count,
                        int most = 0);

}  // namespace clan::preload

// io_uring: the kernel reads and writes descriptors by their numbers, and we do not see when.
#pragma once

#include <atomic>

#include "os/real.h"

namespace clan::preload {

/// Rings of this process that may name a descriptor, as far as we were told.
inline std::atomic<int> rings{0};
inline bool rings_alive() { return rings.load(std::memory_order_acquire) > 0; }

/// syscall(SYS_io_uring_setup, …) and the like, as the C library's syscall() answers.
long ring_setup(unsigned entries, void* parameters);
long ring_register(int fd, unsigned operation, void* argument, unsigned count);
/// Has been closed.
void forget_ring(int fd);

}  // namespace clan::preload

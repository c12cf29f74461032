// By an io_uring the kernel may read any descriptor, unseen by the library: liburing makes its
// system calls in line, and a ring with a kernel thread (IORING_SETUP_SQPOLL) needs none. It would
// read nothing of a moved connection. So before the program learns the descriptor of its first
// ring, all connections go back to TCP, for good.
#pragma once

struct iocb;

namespace clan::preload {

/// Handles a new ring, whose descriptor the program does not know yet.
void ring_made();

/// Keeps a connection on TCP, or takes it back: for asynchronous I/O the C library's threads, or
/// the kernel, use it past the library.
void leave_for_aio(int fd);
/// Does the same for the descriptors of io_submit().
void leave_for_aio(const iocb* const* list, long count);

}  // namespace clan::preload

// A program that has an io_uring may have the kernel read any of its descriptors, by entries in
// memory that nobody shows us: liburing makes its system calls in line, and a ring with a kernel
// thread (IORING_SETUP_SQPOLL) needs none. It would read nothing of a moved connection. So what has
// moved goes back to TCP before the program learns the descriptor of its first ring, and nothing
// moves any more.
#pragma once

struct iocb;

namespace clan::preload {

/// A ring has been made; the program does not know its descriptor yet.
void ring_made();

/// Asynchronous I/O names this descriptor: the C library's threads, or the kernel, use the
/// connection behind it past the library, so it stays on TCP, or goes back there.
void leave_for_aio(int fd);
/// Those that io_submit() is about.
void leave_for_aio(const iocb* const* list, long count);

}  // namespace clan::preload

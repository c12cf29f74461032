// A program that has an io_uring may have the kernel read any of its descriptors, by entries in
// memory that nobody shows us: liburing makes its system calls in line, and a ring with a kernel
// thread (IORING_SETUP_SQPOLL) needs none. It would read nothing of a moved connection.
// So while a ring is alive this process has no pipes: when it is made, before the program learns
// its descriptor, what has moved goes back to TCP, and sockets that appear meanwhile stay there for
// good.
//
// When the last ring is closed, as by a program that only asked whether there are rings,
// connections that are made from then on move again. In doubt a ring lives: closed by
// close_range(), duplicated, or registered with itself.
#pragma once

struct iocb;

namespace clan::preload {

/// A ring has been made; the program does not know its descriptor yet.
void ring_made();

/// A ring is gone.
void ring_closed();

/// The calling thread is in a function of liburing, which may call others, and syscall().
extern constinit thread_local bool t_in_liburing;

/// syscall(SYS_io_uring_setup, …) and the like, as the C library's syscall() answers.
long ring_setup(unsigned entries, void* parameters);
long ring_register(int fd, unsigned operation, void* argument, unsigned count);
/// Has been closed.
void forget_ring(int fd);

/// Asynchronous I/O names this descriptor: the C library's threads, or the kernel, use the
/// connection behind it past the library, so it stays on TCP, or goes back there.
void leave_for_aio(int fd);
/// Those that io_submit() is about.
void leave_for_aio(const iocb* const* list, long count);

}  // namespace clan::preload

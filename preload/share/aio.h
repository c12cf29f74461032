// Connections that asynchronous I/O names: the C library's threads, or the kernel, use them past
// the library.
#pragma once

struct iocb;

namespace clan::preload {

/// A connection behind this descriptor stays on TCP, or goes back there.
void leave_for_aio(int fd);
/// Those that io_submit() is about.
void leave_for_aio(const iocb* const* list, long count);

}  // namespace clan::preload

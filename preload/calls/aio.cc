// Asynchronous I/O: threads of the C library, and the kernel, use sockets past the library, so
// these stay on TCP, or go back there first.
#include <aio.h>
#include <linux/aio_abi.h>

#include <cerrno>

#include "calls/interpose.h"
#include "os/real.h"
#include "os/sys.h"
#include "share/uring.h"

using namespace clan::preload;

CLAN_INTERPOSED(int, aio_read, (aiocb * one), (one)) {
  leave_for_aio(one->aio_fildes);
  return real().aio_read(one);
}
CLAN_INTERPOSED(int, aio_write, (aiocb * one), (one)) {
  leave_for_aio(one->aio_fildes);
  return real().aio_write(one);
}
CLAN_INTERPOSED(int, lio_listio, (int mode, aiocb* const* list, int count, sigevent* event),
                (mode, list, count, event)) {
  for (int i = 0; list != nullptr && i < count; ++i) {
    if (list[i] != nullptr && list[i]->aio_lio_opcode != LIO_NOP)
      leave_for_aio(list[i]->aio_fildes);
  }
  return real().lio_listio(mode, list, count, event);
}

// The names for large files, whose aiocb64 has the same layout.
CLAN_INTERPOSE int aio_read64(aiocb64* one) noexcept {
  return aio_read(reinterpret_cast<aiocb*>(one));
}
CLAN_INTERPOSE int aio_write64(aiocb64* one) noexcept {
  return aio_write(reinterpret_cast<aiocb*>(one));
}
CLAN_INTERPOSE int lio_listio64(int mode, aiocb64* const* list, int count,
                                sigevent* event) noexcept {
  return lio_listio(mode, reinterpret_cast<aiocb* const*>(list), count, event);
}

// libaio's, which makes its system calls by itself.
CLAN_INTERPOSE int io_submit(aio_context_t context, long count, iocb** list) {
  leave_for_aio(list, count);
  KeepErrno keep;
  const long rc = sys::call(SYS_io_submit, context, count, list);
  return rc < 0 ? -errno : static_cast<int>(rc);
}

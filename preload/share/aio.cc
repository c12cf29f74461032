#include "share/aio.h"

#include <linux/aio_abi.h>

#include "clan/face/reasons.h"
#include "demote/demote.h"
#include "table/fd_table.h"

namespace clan::preload {

void leave_for_aio(int fd) {
  if (is_the_kernels(fd)) return;
  if (const SocketRef s = acquire(fd)) never_move(fd, *s, reasons::Why::kAio);
}

void leave_for_aio(const iocb* const* list, long count) {
  for (long i = 0; list != nullptr && i < count; ++i) {
    if (list[i] != nullptr) leave_for_aio(static_cast<int>(list[i]->aio_fildes));
  }
}

}  // namespace clan::preload

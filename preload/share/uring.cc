#include "share/uring.h"

#include <linux/aio_abi.h>

#include <atomic>

#include "clan/detail/log.h"
#include "clan/face/reasons.h"
#include "demote/demote.h"
#include "os/memory_owner.h"
#include "os/sys.h"
#include "share/process_end.h"
#include "table/fd_table.h"

namespace clan::preload {

void ring_made() {
  static std::atomic<bool> has_one{false};
  const KeepErrno keep;
  // relaxed: one thread does it
  if (in_borrowed_memory() || has_one.exchange(true, std::memory_order_relaxed)) return;
  CLAN_INFO("the program has an io_uring: its connections stay on TCP");
  enter_sandbox(reasons::Why::kUring);
}

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

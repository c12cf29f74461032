#include "share/uring.h"

#include <linux/aio_abi.h>

#include <atomic>

#include "clan/detail/log.h"
#include "clan/face/reasons.h"
#include "demote/demote.h"
#include "kernel/proc.h"
#include "os/io_uring_count.h"
#include "os/real.h"
#include "os/sys.h"
#include "share/reasons.h"
#include "state/hooks.h"
#include "table/fd_table.h"

namespace clan::preload {
namespace {

// IORING_REGISTER_RING_FDS: a ring that outlives its descriptor
constexpr unsigned kRegisterRingFds = 20;
constexpr int kMost = 16;
/// rings by system call: descriptor + 1; relaxed: each is a number alone
std::atomic<int> noted[kMost];

// Duplicates, and rings that the library has not seen. No answer: yes.
bool any_open() { return any_descriptor("self", "anon_inode:[io_uring]").value_or(true); }

}  // namespace

constinit thread_local bool t_in_liburing = false;

void ring_made() {
  // PAIR preload.rings: before the checks of what has migrated
  if (open_rings.fetch_add(1, std::memory_order_seq_cst) == 0) {
    CLAN_INFO("the program has an io_uring: its connections stay on TCP while it lives");
  }
  say_of_process(reasons::Why::kUring);
  leave_all_pipes(reasons::Why::kUring);
}

void ring_closed() {
  KeepErrno keep;
  // counts for the other one
  if (open_rings.load(std::memory_order_relaxed) == 1 && any_open()) return;
  // PAIR preload.rings: the ring is gone
  if (open_rings.fetch_sub(1, std::memory_order_release) == 1)
    withdraw_of_process(reasons::Why::kUring);
}

long ring_setup(unsigned entries, void* parameters) {
  const long fd = real().syscall(SYS_io_uring_setup, entries, parameters);
  if (fd < 0 || t_in_liburing) return fd;
  for (auto& one : noted) {
    int none = 0;
    if (one.compare_exchange_strong(none, static_cast<int>(fd) + 1, std::memory_order_relaxed))
      break;
  }
  ring_made();
  return fd;
}

long ring_register(int fd, unsigned operation, void* argument, unsigned count) {
  // PAIR preload.rings: as one more
  // nobody counts it down
  if (operation == kRegisterRingFds) open_rings.fetch_add(1, std::memory_order_seq_cst);
  return real().syscall(SYS_io_uring_register, fd, operation, argument, count);
}

void forget_ring(int fd) {
  for (auto& one : noted) {
    int number = fd + 1;
    if (one.compare_exchange_strong(number, 0, std::memory_order_relaxed)) return ring_closed();
  }
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

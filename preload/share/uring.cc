// A program that has an io_uring may have the kernel read any of its descriptors, by entries in
// memory that nobody shows us: liburing makes its system calls in line, and a ring with a kernel
// thread (IORING_SETUP_SQPOLL) needs none. What it read of a moved connection would be doorbells.
// So while a ring is alive this process has no pipes: when it is made, before the program learns
// its descriptor, what has moved goes back to TCP, and sockets that appear meanwhile stay there for
// good.
//
// When the last ring is closed, as by a program that only asked whether there are rings,
// connections that are made from then on move again. In doubt a ring lives: closed by
// close_range(), duplicated, or registered with itself.
#include "share/uring.h"

#include <dlfcn.h>
#include <fcntl.h>

#include <cstring>
#include <utility>

#include "clan/log.h"
#include "state/socket.h"

struct io_uring;
struct io_uring_params;

using namespace clan::preload;

namespace clan::preload {
namespace {

constexpr unsigned kRegisterRingFds = 20;  // IORING_REGISTER_RING_FDS: a ring that outlives its descriptor
constexpr int kMost = 16;
std::atomic<int> noted[kMost];            ///< rings by system call: descriptor + 1
thread_local bool t_in_liburing = false;  ///< whose functions may call each other, and syscall()

void made() {
  if (rings.fetch_add(1, std::memory_order_seq_cst) == 0) {
    CLAN_INFO("the program has an io_uring: its connections stay on TCP while it lives");
  }
  leave_all_pipes();
}

// Duplicates, and rings we were not told of. No answer: yes.
bool any_open() {
  const int fds =
      static_cast<int>(sys::call(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fds < 0) return true;
  bool found = false;
  DirectoryReader names(fds);
  while (const char* name = found ? nullptr : names.next()) {
    char link[64];
    const long n = sys::call(SYS_readlinkat, fds, name, link, sizeof link - 1);
    link[n > 0 ? n : 0] = 0;
    found = std::strcmp(link, "anon_inode:[io_uring]") == 0;
  }
  sys::close(fds);
  return found;
}

void closed() {
  KeepErrno keep;
  if (rings.load(std::memory_order_relaxed) == 1 && any_open()) return;  // counts for the other one
  rings.fetch_sub(1, std::memory_order_release);
}

}  // namespace

long ring_setup(unsigned entries, void* parameters) {
  const long fd = real().syscall(SYS_io_uring_setup, entries, parameters);
  if (fd < 0 || t_in_liburing) return fd;
  for (auto& one : noted) {
    int none = 0;
    if (one.compare_exchange_strong(none, static_cast<int>(fd) + 1)) break;
  }
  made();
  return fd;
}

long ring_register(int fd, unsigned operation, void* argument, unsigned count) {
  if (operation == kRegisterRingFds) rings.fetch_add(1, std::memory_order_seq_cst);  // nobody counts it down
  return real().syscall(SYS_io_uring_register, fd, operation, argument, count);
}

void forget_ring(int fd) {
  for (auto& one : noted) {
    int number = fd + 1;
    if (one.compare_exchange_strong(number, 0)) return closed();
  }
}

}  // namespace clan::preload

// --- liburing's, which we are not linked with
// -------------------------------------------------------------

namespace {

// What makes a ring answers 0 or more.
template <typename... Parameters, typename... Arguments>
int set_up(int (*)(Parameters...), const char* name, Arguments... arguments) {
  auto* const below = reinterpret_cast<int (*)(Parameters...)>(::dlsym(RTLD_NEXT, name));
  if (below == nullptr) return -ENOSYS;
  const bool outer = !std::exchange(t_in_liburing, true);
  const int rc = below(arguments...);
  if (!outer) return rc;
  t_in_liburing = false;
  if (rc >= 0) made();
  return rc;
}

}  // namespace

CLAN_INTERPOSE int io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags) {
  return set_up(&io_uring_queue_init, "io_uring_queue_init", entries, ring, flags);
}
CLAN_INTERPOSE int io_uring_queue_init_params(unsigned entries, io_uring* ring, io_uring_params* parameters) {
  return set_up(&io_uring_queue_init_params, "io_uring_queue_init_params", entries, ring, parameters);
}
CLAN_INTERPOSE int io_uring_queue_init_mem(unsigned entries, io_uring* ring, io_uring_params* parameters,
                                           void* memory, std::size_t size) {
  return set_up(&io_uring_queue_init_mem, "io_uring_queue_init_mem", entries, ring, parameters, memory, size);
}
CLAN_INTERPOSE int io_uring_setup(unsigned entries, io_uring_params* parameters) {
  return set_up(&io_uring_setup, "io_uring_setup", entries, parameters);
}
CLAN_INTERPOSE void io_uring_queue_exit(io_uring* ring) {
  using Function = void (*)(io_uring*);
  if (auto* const function = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "io_uring_queue_exit")))
    function(ring);
  closed();
}

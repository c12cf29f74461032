#include "shm/asymmetric_fence.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace clan::shm {
namespace {

/// in which what another processor has stored is seen: some hundred times as long
constexpr timespec kStoresArrive{0, 100'000};

long membarrier(int command) { return ::syscall(SYS_membarrier, command, 0, 0); }

}  // namespace

bool AsymmetricFence::register_process() {
  // Registering again after fork is harmless; the kernel forgets it at exec, as do we.
  static const bool registered = membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
  return registered;
}

void AsymmetricFence::heavy() {
  if (membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0) return;
  full();
  // Refused since, as by the program's own filter. Senders rely on it: their stores arrive by then.
  if (register_process()) ::nanosleep(&kStoresArrive, nullptr);
}

}  // namespace clan::shm

#include "shm/asymmetric_fence.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace clan::shm {
namespace {

long membarrier(int command) { return ::syscall(SYS_membarrier, command, 0, 0); }

}  // namespace

bool AsymmetricFence::register_process() {
  // Registering again after fork is harmless; the kernel forgets it at exec, as do we.
  static const bool registered = membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
  return registered;
}

void AsymmetricFence::heavy() {
  if (membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) != 0) full();
}

}  // namespace clan::shm

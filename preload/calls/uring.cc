// liburing's calls. The library is not linked with it.
#include "share/uring.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstddef>

#include "calls/interpose.h"

struct io_uring;
struct io_uring_params;

using namespace clan::preload;

namespace {

template <typename... Parameters, typename... Arguments>
int set_up(int (*)(Parameters...), const char* name, Arguments... arguments) {
  auto* const below = reinterpret_cast<int (*)(Parameters...)>(::dlsym(RTLD_NEXT, name));
  if (below == nullptr) return -ENOSYS;
  const int rc = below(arguments...);
  if (rc >= 0) ring_made();
  return rc;
}

}  // namespace

CLAN_INTERPOSE int io_uring_queue_init(unsigned entries, io_uring* ring, unsigned flags) {
  return set_up(&io_uring_queue_init, "io_uring_queue_init", entries, ring, flags);
}
CLAN_INTERPOSE int io_uring_queue_init_params(unsigned entries, io_uring* ring,
                                              io_uring_params* parameters) {
  return set_up(&io_uring_queue_init_params, "io_uring_queue_init_params", entries, ring,
                parameters);
}
CLAN_INTERPOSE int io_uring_queue_init_mem(unsigned entries, io_uring* ring,
                                           io_uring_params* parameters, void* memory,
                                           std::size_t size) {
  return set_up(&io_uring_queue_init_mem, "io_uring_queue_init_mem", entries, ring, parameters,
                memory, size);
}
CLAN_INTERPOSE int io_uring_setup(unsigned entries, io_uring_params* parameters) {
  return set_up(&io_uring_setup, "io_uring_setup", entries, parameters);
}

#include "os/memory_owner.h"

#include <sys/mman.h>

#include <atomic>

#include "os/sandbox.h"
#include "os/sys.h"

namespace clan::preload {
namespace {

// Whose memory this is, on a page that every fork empties and vfork does not.
std::atomic<pid_t>* owner = nullptr;
// Without that page: also true in children of forks that the library does not see.
std::atomic<pid_t> pid_now{0};

}  // namespace

void note_process() {
  // relaxed: our own
  pid_now.store(static_cast<pid_t>(sys::call(SYS_getpid)), std::memory_order_relaxed);
  if (owner == nullptr) {
    if (is_filtered()) return;  // which may kill for madvise
    void* page =
        sys::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    if (::madvise(page, 4096, MADV_WIPEONFORK) != 0) {  // before Linux 4.14
      sys::munmap(page, 4096);
      return;
    }
    owner = static_cast<std::atomic<pid_t>*>(page);
  }
  // relaxed: read by this process alone, or by a child that vfork() holds it for
  owner->store(static_cast<pid_t>(sys::call(SYS_getpid)), std::memory_order_relaxed);
}

bool in_borrowed_memory() {
  if (owner == nullptr) {
    const pid_t of = pid_now.load(std::memory_order_relaxed);
    return of != 0 && of != sys::call(SYS_getpid);
  }
  const pid_t of = owner->load(std::memory_order_relaxed);
  return of != 0 && of != sys::call(SYS_getpid);
}

}  // namespace clan::preload

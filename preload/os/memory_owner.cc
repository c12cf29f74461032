#include "os/memory_owner.h"

#include <sys/mman.h>

#include <atomic>

#include "os/sandbox.h"
#include "os/sys.h"

namespace clan::preload {
namespace {

// Without the page: in children of forks that the library does not see, memory seems borrowed.
std::atomic<pid_t> pid_now{0};
// The process that owns this memory: `pid_now`, or a word on a page that fork empties and vfork
// does not. relaxed: used by this process alone, or by a child while vfork() suspends the parent
std::atomic<pid_t>* owner = &pid_now;

}  // namespace

void note_process() {
  const auto self = static_cast<pid_t>(sys::call(SYS_getpid));
  owner->store(self, std::memory_order_relaxed);
  if (owner != &pid_now || is_filtered()) return;  // a filter may kill for madvise
  void* page = sys::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (::madvise(page, 4096, MADV_WIPEONFORK) != 0) {  // before Linux 4.14
    sys::munmap(page, 4096);
    return;
  }
  owner = static_cast<std::atomic<pid_t>*>(page);
  owner->store(self, std::memory_order_relaxed);
}

bool in_borrowed_memory() {
  const pid_t of = owner->load(std::memory_order_relaxed);
  return of != 0 && of != sys::call(SYS_getpid);
}

}  // namespace clan::preload

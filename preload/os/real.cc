#include "os/real.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>

#include "os/sandbox.h"

namespace clan::preload {
namespace {

Real table;
std::atomic<bool> ready{false};

template <typename Function>
void look_up(Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

void fill() {
  // Two threads may do this at once: both store the same values.
#define CLAN_X(result, name, parameters) look_up(table.name, #name);
  CLAN_REAL_FUNCTIONS(CLAN_X)
#undef CLAN_X
  ready.store(true, std::memory_order_release);  // PAIR preload.real: publishes the table
}

// Whose memory this is, on a page that every fork empties and vfork does not.
std::atomic<pid_t>* owner = nullptr;
// Without that page: also true in children of forks that the library does not see.
std::atomic<pid_t> pid_now{0};

}  // namespace

void note_process() {
  pid_now.store(static_cast<pid_t>(sys::call(SYS_getpid)), std::memory_order_relaxed);  // relaxed: our own
  if (owner == nullptr) {
    if (is_filtered()) return;  // which may kill for madvise
    void* page = sys::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    if (::madvise(page, 4096, MADV_WIPEONFORK) != 0) {  // before Linux 4.14
      sys::munmap(page, 4096);
      return;
    }
    owner = static_cast<std::atomic<pid_t>*>(page);
  }
  owner->store(static_cast<pid_t>(sys::call(SYS_getpid)));
}

bool in_borrowed_memory() {
  if (owner == nullptr) {
    const pid_t of = pid_now.load(std::memory_order_relaxed);
    return of != 0 && of != sys::call(SYS_getpid);
  }
  const pid_t of = owner->load(std::memory_order_relaxed);
  return of != 0 && of != sys::call(SYS_getpid);
}

const Real& real() {
  if (!ready.load(std::memory_order_acquire)) fill();  // PAIR preload.real
  return table;
}

}  // namespace clan::preload

#include "os/real.h"

#include <dlfcn.h>

#include <atomic>
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

}  // namespace

const Real& real() {
  if (!ready.load(std::memory_order_acquire)) fill();  // PAIR preload.real
  return table;
}

}  // namespace clan::preload

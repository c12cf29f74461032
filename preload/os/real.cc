#include "os/real.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/timerfd.h>

#include <atomic>

namespace clan::preload {
namespace {

// calls.def has the parameters and results of the C library's headers.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define CLAN_CALL(result, name, parameters, test) \
  [[maybe_unused]] constexpr result(*declared_##name) parameters = &::name;
#include "calls.def"
#pragma GCC diagnostic pop

Real functions;
std::atomic<bool> ready{false};

template <typename Function>
void look_up(Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

void fill() {
  // Two threads may do this at once: both store the same values.
#define CLAN_CALL(result, name, parameters, test) look_up(functions.name, #name);
#include "calls.def"
  ready.store(true, std::memory_order_release);  // PAIR preload.real: publishes the functions
}

}  // namespace

const Real& real() {
  if (!ready.load(std::memory_order_acquire)) fill();  // PAIR preload.real
  return functions;
}

}  // namespace clan::preload

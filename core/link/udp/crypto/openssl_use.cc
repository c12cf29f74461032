#include "link/udp/crypto/openssl_use.h"

#include <openssl/crypto.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace clan::udp {
namespace {

/// A call takes a millisecond at most. One that exit() in a signal handler cut off delays the end.
constexpr std::chrono::seconds kPatience(1);

constinit std::shared_mutex g_calls;
constinit std::atomic<bool> g_over{false};
constinit std::atomic<int> g_process{0};

// The lock is not given back. A child of fork has none of the threads that are inside.
void shut() {
  // relaxed: a number by itself
  if (g_process.load(std::memory_order_relaxed) != ::getpid()) return;
  // relaxed: those that have not seen it are inside, and waited for
  g_over.store(true, std::memory_order_relaxed);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!g_calls.try_lock() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

// relaxed: shut() waits for those that have not seen it
OpenSslUse::OpenSslUse()
    : lock_(g_over.load(std::memory_order_relaxed)
                ? std::shared_lock<std::shared_mutex>()
                : std::shared_lock<std::shared_mutex>(g_calls, std::try_to_lock)) {}

void watch_for_the_end_of_openssl() {
  // relaxed: a number by itself
  g_process.store(::getpid(), std::memory_order_relaxed);
  static const bool watches = ::OPENSSL_atexit(shut) == 1;
  (void)watches;
}

}  // namespace clan::udp

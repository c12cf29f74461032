#include "system/fork_mutex.h"

#include <pthread.h>
#include <unistd.h>

#include <vector>

namespace clan::ofi {
namespace {

constexpr int kAttempts = 20'000;  ///< a second or more

struct Registry {
  std::mutex mutex;
  std::vector<ForkMutex*> all;
  bool taken = false;  ///< by the fork under way
};

// Never destroyed: threads of the application may outlive static destructors.
Registry& registry() {
  static Registry* const registry = new Registry;
  return *registry;
}

bool take_all() {
  auto& all = registry().all;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i]->try_lock()) continue;
    while (i > 0) all[--i]->unlock();
    return false;
  }
  return true;
}

// A thread that holds one may be waiting for another, or for the registry: so all or none, and
// never waiting with some.
void before_fork() {
  for (int attempt = 0;; ++attempt) {
    registry().mutex.lock();
    registry().taken = take_all();
    if (registry().taken || attempt == kAttempts) return;
    registry().mutex.unlock();
    ::usleep(50);
  }
}

void after_fork() {
  if (registry().taken) {
    for (ForkMutex* mutex : registry().all) mutex->unlock();
  }
  registry().mutex.unlock();
}

}  // namespace

ForkMutex::ForkMutex() {
  std::lock_guard lock(registry().mutex);
  registry().all.push_back(this);
}

ForkMutex::~ForkMutex() {
  std::lock_guard lock(registry().mutex);
  std::erase(registry().all, this);
}

void ForkMutex::watch_forks() {
  static const int installed = ::pthread_atfork(before_fork, after_fork, after_fork_in_child);
  (void)installed;
}

void ForkMutex::after_fork_in_child() {
  forks_.fetch_add(1, std::memory_order_relaxed);  // relaxed: the child has one thread
  after_fork();
}

}  // namespace clan::ofi

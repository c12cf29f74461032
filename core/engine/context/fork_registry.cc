#include "engine/context/fork_registry.h"

#include <pthread.h>

#include <mutex>
#include <vector>

namespace clan::engine {
namespace {

struct ForkRegistry {
  std::mutex mutex;
  std::vector<ForkAware*> objects;
};

// Never destroyed: threads of the application may outlive static destructors.
ForkRegistry& registry() {
  static ForkRegistry* made = new ForkRegistry;
  return *made;
}

void before_fork() {
  registry().mutex.lock();
  for (ForkAware* object : registry().objects) object->lock_for_fork();
}

void after_fork_in_parent() {
  for (ForkAware* object : registry().objects) object->unlock_after_fork();
  registry().mutex.unlock();
}

void after_fork_in_child() {
  for (ForkAware* object : registry().objects) {
    object->unlock_after_fork();
    object->abandon_after_fork();
  }
  registry().objects.clear();
  registry().mutex.unlock();
}

}  // namespace

void watch_forks(ForkAware* object) {
  static const int installed =
      pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  (void)installed;
  std::lock_guard lock(registry().mutex);
  registry().objects.push_back(object);
}

void unwatch_forks(ForkAware* object) {
  std::lock_guard lock(registry().mutex);
  std::erase(registry().objects, object);
}

}  // namespace clan::engine

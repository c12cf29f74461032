#include "engine/context/fork_registry.h"

#include <pthread.h>

#include <mutex>
#include <vector>

#include "engine/context/context_core.h"

namespace clan::engine {
namespace {

struct ForkRegistry {
  std::mutex mutex;
  std::vector<ContextCore*> contexts;
};

// Never destroyed: threads of the application may outlive static destructors.
ForkRegistry& registry() {
  static ForkRegistry* made = new ForkRegistry;
  return *made;
}

void before_fork() {
  registry().mutex.lock();
  for (ContextCore* context : registry().contexts) context->lock_for_fork();
}

void after_fork_in_parent() {
  for (ContextCore* context : registry().contexts) context->unlock_after_fork();
  registry().mutex.unlock();
}

void after_fork_in_child() {
  for (ContextCore* context : registry().contexts) {
    context->unlock_after_fork();
    context->abandon_after_fork();
  }
  registry().contexts.clear();
  registry().mutex.unlock();
}

}  // namespace

void watch_forks(ContextCore* context) {
  static const int installed =
      pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  (void)installed;
  std::lock_guard lock(registry().mutex);
  registry().contexts.push_back(context);
}

void unwatch_forks(ContextCore* context) {
  std::lock_guard lock(registry().mutex);
  std::erase(registry().contexts, context);
}

}  // namespace clan::engine

#include "runtime.h"

#include <clan/detail/log.h>
#include <pthread.h>
#include <unistd.h>

#include <mutex>

namespace clan::shrimp {
namespace {

struct Process {
  std::mutex mutex;
  pid_t id = getpid();
  Context* context = nullptr;  // never destroyed: other threads may use it until the process ends
};

Process& process() {
  static Process* const p = [] {
    auto* made = new Process;
    pthread_atfork([] { process().mutex.lock(); }, [] { process().mutex.unlock(); },
                   [] {
                     process().mutex.unlock();
                     process().id = getpid();
                     process().context = nullptr;  // the parent's
                   });
    return made;
  }();
  return *p;
}

}  // namespace

pid_t process_id() { return process().id; }

Context* process_context() {
  Process& p = process();
  {
    std::lock_guard lock(p.mutex);
    if (p.context != nullptr) return p.context;
  }
  auto made = Context::create();  // not under our mutex: fork() takes the engine's locks before it
  std::lock_guard lock(p.mutex);
  if (p.context != nullptr) return p.context;  // another thread's
  if (!made) {
    CLAN_WARN("no engine for remote calls: %s", made.error().message().c_str());
    return nullptr;
  }
  p.context = new Context(std::move(*made));
  return p.context;
}

}  // namespace clan::shrimp

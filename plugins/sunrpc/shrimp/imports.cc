#include "imports.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>

#include "runtime.h"

namespace clan::shrimp {
namespace {

constexpr std::size_t kMostThreads = 32;
constexpr std::int64_t kImportMs = 5000;

}  // namespace

void Imports::begin(PeerIndex peer, const RdmaCookie& memory) {
  asked_.push_back({peer, memory, false});
  start();
}

void Imports::forget(PeerIndex peer) {
  std::erase_if(asked_, [&](const Asked& a) { return a.peer == peer; });
}

bool Imports::has(PeerIndex peer) const {
  return std::any_of(asked_.begin(), asked_.end(), [&](const Asked& a) { return a.peer == peer; });
}

void Imports::import(const std::shared_ptr<Shared>& shared, PeerIndex peer,
                     const RdmaCookie& memory) {
  Done done{peer, RemoteAperture::import(*process_context(), memory, kImportMs)};
  std::lock_guard lock(shared->mutex);
  --shared->running;
  shared->done.push_back(std::move(done));
  shared->done_count.store(shared->done.size(),
                           std::memory_order_relaxed);  // relaxed: the mutex orders the rest
}

// As many as may run, without signals: handlers are the program's, for its own threads.
void Imports::start() {
  for (Asked& next : asked_) {
    if (next.started) continue;
    {
      std::lock_guard lock(shared_->mutex);
      if (shared_->running == kMostThreads) return;
      ++shared_->running;
    }
    next.started = true;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([shared = shared_, next] { import(shared, next.peer, next.memory); }).detach();
    } catch (const std::system_error&) {
      std::lock_guard lock(shared_->mutex);
      --shared_->running;
      shared_->done.push_back({next.peer, Error{EAGAIN, "there can be no more threads"}});
      // relaxed: as in import()
      shared_->done_count.store(shared_->done.size(), std::memory_order_relaxed);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
}

std::optional<Imports::Done> Imports::take() {
  std::unique_lock lock(shared_->mutex, std::defer_lock);
  while (any_done()) {
    lock.lock();
    Done done = std::move(shared_->done.front());
    shared_->done.pop_front();
    // relaxed: as in import()
    shared_->done_count.store(shared_->done.size(), std::memory_order_relaxed);
    lock.unlock();
    const bool wanted = has(done.peer);
    forget(done.peer);
    start();
    if (wanted) return done;
  }
  return std::nullopt;
}

}  // namespace clan::shrimp

#include "nic/unmap_watch.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include "base/fork_lock.h"

namespace clan::nic {
namespace {

// Held over fork. A child has no watch: it makes one of its own when it needs it.
constinit std::mutex watch_mutex;
constinit std::weak_ptr<UnmapWatch> watch_of_process;

void start_over_in_child() { watch_of_process.reset(); }

}  // namespace

Result<std::shared_ptr<UnmapWatch>> UnmapWatch::get() {
  if (!hold_over_forks<watch_mutex, start_over_in_child>())
    return Error{ENOMEM, "unmap watch: pthread_atfork"};
  const auto there = [] {
    std::lock_guard lock(watch_mutex);
    return watch_of_process.lock();
  };
  if (auto found = there()) return found;
  // Without the lock: a fork takes that of the monitors first.
  std::shared_ptr<UnmapWatch> made(new UnmapWatch);
  if (made->available()) {
    if (auto s = made->start(); !s) return s.error();
  }
  std::unique_lock lock(watch_mutex);
  if (auto found = watch_of_process.lock()) {  // another thread was faster
    lock.unlock();
    return found;
  }
  watch_of_process = made;
  return made;
}

Status UnmapWatch::start() {
  auto stop = create_eventfd();
  if (!stop) return stop.error();
  stop_ = std::move(*stop);
  // The application's signals are the business of its own threads.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  Status started;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::exception&) {
    started = Error{EAGAIN, "no thread to watch unmaps"};
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return started;
}

UnmapWatch::~UnmapWatch() {
  if (!thread_.joinable()) return;
  if (!available()) {  // a child: the thread is its parent's
    thread_.detach();
    return;
  }
  words::publish(ends_, true);  // PAIR unmap.ends: this thread asks nothing of the monitor any more
  signal_eventfd(stop_.get());
  thread_.join();
}

// By the rules of nic/unmap_monitor.h until the monitor is closed.
void UnmapWatch::run() {
  pthread_setname_np(pthread_self(), "clan-unmaps");
  pollfd fds[2] = {{monitor_.fd(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  bool closed = false;  // by the program, which closes descriptors that are not its own
  while (!words::look(ends_) && !closed) {  // PAIR unmap.ends: sees that it may be closed
    if (::poll(fds, 2, -1) < 0) continue;
    // PAIR unmap.rounds: odd before the read that lets an unmap return
    words::add(rounds_, 1u);
    monitor_.process_events([this](const UnmapMonitor::Change& change) {
      std::lock_guard lock(mutex_);
      for (Listener* l = first_; l != nullptr; l = l->next_) l->on_change(change);
    });
    words::add(rounds_, 1u);  // PAIR unmap.rounds: what was read has been forgotten
    closed = ((fds[0].revents | fds[1].revents) & POLLNVAL) != 0;
  }
  if (!closed) monitor_.close();
  std::lock_guard lock(mutex_);
  for (Listener* l = first_; l != nullptr; l = l->next_) l->on_end();
}

void UnmapWatch::settle() const {
  const std::uint32_t seen = words::look(rounds_);  // PAIR unmap.rounds: as in settled()
  if (seen % 2 == 0) return;
  while (words::look(rounds_) == seen) ::sched_yield();  // PAIR unmap.rounds: sees what is undone
}

void UnmapWatch::add(Listener& listener) {
  std::lock_guard lock(mutex_);
  listener.next_ = first_;
  first_ = &listener;
}

void UnmapWatch::remove(Listener& listener) {
  std::lock_guard lock(mutex_);
  for (Listener** l = &first_; *l != nullptr; l = &(*l)->next_) {
    if (*l != &listener) continue;
    *l = listener.next_;
    return;
  }
}

}  // namespace clan::nic

// Reactor: one thread that sleeps in epoll_wait and calls the owner of each ready descriptor.
//
// The driver of a Context: connection set-up, deaths of peers and whatever else may wait for a
// system call happen here. It never polls and never wakes without cause: an idle process costs no
// CPU time. The thread starts with the first descriptor and ends with stop(), or when somebody has
// closed its own descriptor.
//
// add(), remove() and stop() may be called from any thread, remove() also from a callback.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/fd.h"

namespace clan {

class Pollable {
 public:
  virtual ~Pollable() = default;
  /// Called on the reactor's thread while the descriptor is ready (level-triggered). `events` as in
  /// epoll.
  virtual void on_ready(std::uint32_t events) = 0;
  /// After fork, in the child: closes the descriptor, which otherwise outlives the parent here.
  virtual void abandon_after_fork() {}
};

class Reactor {
 public:
  Reactor() = default;
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  /// Watches `fd` for input and hang-up. Starts the thread if needed.
  Status add(int fd, std::shared_ptr<Pollable> pollable);
  /// Calls `then` once on the reactor's thread, at `at_ns` or after it (CLOCK_MONOTONIC). Returns
  /// what remove() takes to prevent that; until then, or until the call has begun, the number is
  /// taken.
  Result<int> call_at(std::uint64_t at_ns, std::function<void()> then);
  /// Calls `then` once on the reactor's thread with `fd`, which has input then or has ended.
  /// Returns its number, for remove().
  Result<int> once(Fd fd, std::function<void(Fd fd)> then);
  /// After it returns (on another thread) the pollable may still finish one call that had begun.
  void remove(int fd);
  /// Whether on_ready() is also called while `fd` has room for output.
  void watch_output(int fd, bool on);
  /// Ends the thread and waits for it, unless called on it.
  void stop();
  bool on_reactor_thread() const;
  /// Around fork: the child finds the table whole.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }
  /// After fork, in the child: the thread does not exist there; closes our descriptors and those of
  /// the pollables.
  void abandon_after_fork();

 private:
  Status start_locked();
  void run();

  std::mutex mutex_;
  Fd epoll_;
  Fd wake_;
  std::unordered_map<int, std::shared_ptr<Pollable>> pollables_;
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_{};
  std::atomic<bool> stopping_{false};
};

}  // namespace clan

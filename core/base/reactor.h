// Reactor: one thread that sleeps in epoll_wait and calls the owner of each ready descriptor.
//
// The driver of a Context: connection set-up, deaths of peers and whatever may wait for a system
// call. It never polls: an idle process costs no CPU time. The thread starts with the first
// descriptor and ends with stop(), or when someone has closed its own descriptor.
//
// Any thread may call add(), remove() and stop(); a callback may call remove().
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
  /// Runs on the reactor's thread while the descriptor is ready (level-triggered, as in epoll).
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
  /// Calls `then` once on the reactor's thread, at `at_ns` (CLOCK_MONOTONIC) or later. Returns the
  /// number that remove() takes to prevent that, taken until the call has begun.
  Result<int> call_at(std::uint64_t at_ns, std::function<void()> then);
  /// Calls `then` once on the reactor's thread when `fd` has input or has ended. For remove().
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
  /// Closes, in the child of a fork, our descriptors and the pollables'; the thread is not there.
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

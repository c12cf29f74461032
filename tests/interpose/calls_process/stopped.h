// Processes that share a connection and are stopped while they use it.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <functional>

#include "helpers.h"

namespace clan::test {

inline constexpr double kSoon = 5;  ///< 0.08 s, on a very busy machine; the fault was ten seconds

inline double seconds_of(const std::function<void()>& what) {
  const auto before = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

/// The word of a lock of a pipe that a process of this pid namespace has (engine/pipe_lock.h).
inline std::uint32_t lock_word_of(pid_t process) {
  struct stat space {};
  EXPECT_EQ(::stat("/proc/self/ns/pid", &space), 0);
  return static_cast<std::uint32_t>(process) |
         (static_cast<std::uint32_t>(space.st_ino) << 23 & 255u << 23);
}

/// A process that has the connection too, and is stopped until it is told to go on.
class Stopped {
 public:
  /// `before` is done in it before it is stopped, `after` then.
  Stopped(const std::function<void()>& before, const std::function<void()>& after) {
    pid_ = child(
        [&] {
          if (preloaded()) before();
          ::raise(SIGSTOP);
          if (preloaded()) after();
          return 0;
        },
        60);
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  ~Stopped() {
    go_on();
    EXPECT_EQ(result_of(pid_), 0);
  }
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;
  void go_on() const { ::kill(pid_, SIGCONT); }

 private:
  pid_t pid_ = -1;
};

/// A sharer of `fd` that is stopped while it has the lock of its sends, or of its receives: in the
/// middle of a copy.
inline Stopped stopped_in_a_copy(int fd, bool sends) {
  auto lock = [fd, sends]() -> std::atomic<std::uint32_t>& {
    PipePage::End& end = *end_of(fd);
    return sends ? end.sender.lock : end.receiver.lock;
  };
  return Stopped([lock] { lock().store(lock_word_of(::getpid())); }, [lock] { lock().store(0); });
}

// After a while in which a stopped process would have been noticed.
class GoesOnLater {
 public:
  explicit GoesOnLater(const Stopped& stopped, unsigned after_us = 400'000)
      : thread_([&stopped, after_us] {
          ::usleep(after_us);
          stopped.go_on();
        }) {}
  ~GoesOnLater() { thread_.join(); }
  GoesOnLater(const GoesOnLater&) = delete;
  GoesOnLater& operator=(const GoesOnLater&) = delete;

 private:
  std::thread thread_;
};

}  // namespace clan::test

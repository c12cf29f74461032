// Servers of the tests' own making, as children of the test.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

namespace clan::test {

/// As fork(); the child does not outlive the test, not even stopped.
inline pid_t fork_of_test() {
  const pid_t child = fork();
  if (child == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  return child;
}

/// Runs `serve` in a child, which says by say_port() where it listens. Killed at the end.
class Forked {
 public:
  explicit Forked(const std::function<void(int ready)>& serve) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
    pid_ = fork_of_test();
    if (pid_ == 0) {
      serve(ends[1]);
      _exit(1);
    }
    close(ends[1]);
    if (read(ends[0], &port_, sizeof port_) != sizeof port_)
      ADD_FAILURE() << "the server did not start";
    close(ends[0]);
  }
  Forked(const Forked&) = delete;
  Forked& operator=(const Forked&) = delete;
  ~Forked() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  int port() const { return port_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  int port_ = 0;
};

inline void say_port(int ready, int port) {
  if (write(ready, &port, sizeof port) != sizeof port) _exit(1);
}

}  // namespace clan::test

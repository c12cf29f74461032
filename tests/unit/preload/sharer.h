// A process that shares an end of a connection with the test, and is stopped at a system call.
#pragma once

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "clan/face/pipe.h"
#include "os/signals.h"

namespace clan::preload {

/// A child that shares an end, and stops where the test wants it to.
class Sharer {
 public:
  explicit Sharer(const std::function<bool()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    t_signals.thread = 0;
    Pipe::after_fork_in_child();
    ::alarm(60);
    ::_exit(body() ? 0 : 1);
  }
  ~Sharer() { EXPECT_TRUE(ended_) << "not waited for"; }
  Sharer(const Sharer&) = delete;
  Sharer& operator=(const Sharer&) = delete;

  /// By a signal of its own.
  void has_stopped() const {
    int status = 0;
    ASSERT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
    ASSERT_TRUE(WIFSTOPPED(status));
  }
  /// Traced, it goes to its `nth` call of that number, and stops before it or after it.
  void goes_to(long number, int nth, bool behind) const {
    has_stopped();
    ASSERT_EQ(::ptrace(PTRACE_SETOPTIONS, pid_, nullptr, PTRACE_O_TRACESYSGOOD), 0);
    for (int stops = 0; stops < 2 * nth - (behind ? 0 : 1);) {
      int status = 0;
      ASSERT_EQ(::ptrace(PTRACE_SYSCALL, pid_, nullptr, nullptr), 0);
      ASSERT_EQ(::waitpid(pid_, &status, 0), pid_);
      ASSERT_TRUE(WIFSTOPPED(status)) << "it has ended before";
      user_regs_struct registers{};
      ASSERT_EQ(::ptrace(PTRACE_GETREGS, pid_, nullptr, &registers), 0);
      if (registers.orig_rax == static_cast<unsigned long>(number)) ++stops;
    }
  }
  void goes_on() const { ::kill(pid_, SIGCONT); }
  void is_killed() {
    int status = 0;
    ::kill(pid_, SIGKILL);
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    ended_ = true;
  }
  void ends_well() {
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    ended_ = true;
  }

 private:
  pid_t pid_;
  bool ended_ = false;
};

inline bool trace_me() {
  if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) return false;
  ::raise(SIGSTOP);
  return true;
}

}  // namespace clan::preload

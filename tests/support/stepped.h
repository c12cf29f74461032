// A process that is stopped at a given instruction of a call. Not for builds with sanitizers, which
// make a hundred instructions of each: ThreadSanitizer sees one thread in each process, and
// AddressSanitizer the same accesses as in tests that stop nobody.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

namespace clan {

/// False in containers that forbid it.
inline bool can_step() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// How far apart the places are at which a call of so many instructions is stopped: a hundred of
/// them, even and odd ones, or with CLAN_TEST_FULL one at each `fewest`.
inline int apart(int all, int fewest) {
  constexpr int kPlaces = 100;
  return std::getenv("CLAN_TEST_FULL") != nullptr ? fewest : std::max(all / kPlaces | 1, fewest);
}

class Stepped {
 public:
  /// A child makes `call()` and is stopped behind so many of its instructions, or at its end. What
  /// it answers is its exit code.
  template <typename Call>
  Stepped(int steps, Call&& call) {
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::alarm(60);
      ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      ::raise(SIGSTOP);
      const int result = call();
      ::raise(SIGURG);  // the tracer sees it, and nobody else
      ::_exit(result);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(process_, &status, 0), process_);
    for (; made_ < steps && !ended_; ++made_) {
      ::ptrace(PTRACE_SINGLESTEP, process_, nullptr, nullptr);
      EXPECT_EQ(::waitpid(process_, &status, 0), process_);
      ended_ = !WIFSTOPPED(status) || WSTOPSIG(status) == SIGURG;
    }
  }
  ~Stepped() {
    if (process_ > 0) kill();
  }
  Stepped(const Stepped&) = delete;
  Stepped& operator=(const Stepped&) = delete;
  int made() const { return made_; }
  bool ended() const { return ended_; }
  void kill() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
  }
  /// Goes on to its end: what `call` has answered.
  int go_on() {
    int status = 0;
    ::ptrace(PTRACE_DETACH, process_, nullptr, nullptr);
    ::waitpid(process_, &status, 0);
    process_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t process_ = -1;
  int made_ = 0;
  bool ended_ = false;
};

}  // namespace clan

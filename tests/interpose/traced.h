// A process that is traced, and stopped at a given instruction of its call.
#pragma once

#include <sched.h>
#include <sys/ptrace.h>

#include <chrono>

#include "connection.h"

namespace clan::test {

inline constexpr int kLooks = 20;  ///< so many in a row that see it asleep: no nap of the library's

struct Steps {
  int made = 0;
  bool ended = false;
};

/// A step of a process that is traced: its status then. One that sleeps in the kernel is stopped
/// there.
inline int step(pid_t process, bool* sleeps) {
  int status = 0, looks = 0;
  ::ptrace(PTRACE_SINGLESTEP, process, nullptr, nullptr);
  while (::waitpid(process, &status, WNOHANG) == 0) {
    looks = state_of(process) == 'S' ? looks + 1 : 0;
    looks > 0 ? (void)::usleep(1000) : (void)::sched_yield();
    if (looks < kLooks) continue;
    *sleeps = true;
    ::kill(process, SIGSTOP);
    ::waitpid(process, &status, 0);
    break;
  }
  return status;
}

/// Lets a process make so many steps, or less if it sleeps, and leaves it stopped. When it comes to
/// the end of its call it goes on.
inline Steps stop_after(pid_t process, int steps) {
  Steps so_far;
  int status = 0;
  EXPECT_EQ(::waitpid(process, &status, 0), process);
  for (bool sleeps = false; so_far.made < steps && !sleeps && !so_far.ended; ++so_far.made) {
    status = step(process, &sleeps);
    so_far.ended = !sleeps && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP;
  }
  EXPECT_TRUE(WIFSTOPPED(status));
  const long with = so_far.ended ? 0 : SIGSTOP;
  ::ptrace(PTRACE_DETACH, process, nullptr, reinterpret_cast<void*>(with));
  if (so_far.ended) return so_far;
  EXPECT_EQ(::waitpid(process, &status, WUNTRACED), process);
  EXPECT_TRUE(WIFSTOPPED(status));
  return so_far;
}

/// It hangs: false.
inline bool ends_well(pid_t process) {
  int status = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (::waitpid(process, &status, WNOHANG | WUNTRACED) == 0 || WIFSTOPPED(status)) {
    ::kill(process, SIGCONT);  // at the end of its call
    if (std::chrono::steady_clock::now() > end) {
      ::kill(process, SIGKILL);
      ::waitpid(process, &status, 0);
      return false;
    }
    ::usleep(200);
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

inline bool can_trace() {
  return result_of(
             child([] { return ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 ? 0 : 1; })) == 0;
}

}  // namespace clan::test

#include "support/cpu_time.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace clan::bench {
namespace {

constexpr double kNs = 3e6;

/// So much of it by the thread that calls this.
void compute() {
  for (const double end = cpu_ns_by(CLOCK_THREAD_CPUTIME_ID) + kNs;
       cpu_ns_by(CLOCK_THREAD_CPUTIME_ID) < end;) {
    continue;
  }
}

TEST(CpuTime, IsThatOfAllThreadsOfTheProcessEndedOnesToo) {
  const double before = cpu_ns();
  std::thread other(compute);
  compute();
  other.join();
  EXPECT_GE(cpu_ns() - before, 2 * kNs);
}

TEST(CpuTime, OfAnotherProcessIsReadUntilItHasBeenWaitedFor) {
  const pid_t other = fork();
  if (other == 0) {
    compute();
    _exit(0);
  }
  ASSERT_GT(other, 0);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(other), &info, WEXITED | WNOWAIT), 0);
  EXPECT_GE(cpu_ns_of(other), kNs);
  waitpid(other, nullptr, 0);
  EXPECT_EQ(cpu_ns_of(other), 0);
}

}  // namespace
}  // namespace clan::bench

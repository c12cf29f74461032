#include "support/context.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clan/detail/clock.h"
#include "support/cpu_time.h"
#include "support/process.h"

namespace clan::bench {
namespace {

TEST(OtherWork, IsWhatTheProcessorsDoButIdleAndWait) {
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  EXPECT_DOUBLE_EQ(busy_seconds("cpu  100 20 3 100000 5000 400 50 6 0 0"), 579 / ticks);
  EXPECT_DOUBLE_EQ(busy_seconds("cpu  100 20 3 100000"), 123 / ticks);
  EXPECT_EQ(busy_seconds("cpu0 100 20 3 100000"), 0);
  EXPECT_EQ(busy_seconds(""), 0);
}

// A child that has not been waited for stands for it.
TEST(OtherWork, IsSeenWhileItRuns) {
  const OtherWork beside;
  const std::uint64_t began = monotonic_ns();
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) {
    }
  }
  ASSERT_TRUE(test::eventually([&] { return cpu_ns_of(child) > 1e9; }));
  const double seconds = static_cast<double>(monotonic_ns() - began) / 1e9;
  EXPECT_GT(beside.processors() * seconds, 0.5);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace clan::bench

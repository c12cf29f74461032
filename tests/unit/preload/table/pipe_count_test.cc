// How many pipes the user has, and what one of them may hold.
#include "table/pipe_count.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "os/sandbox.h"

namespace clan::preload {
namespace {

struct PipeCount : testing::Test {
  // As before the first pipe: what is counted by is looked for once.
  PipeCount() { EXPECT_TRUE(permits_moving()); }
};

TEST_F(PipeCount, SharesTheMemoryAmongThoseThatThisProcessHas) {
  const std::uint64_t one = share_of_pipe(1'000'000);
  EXPECT_GT(one, 0u);
  EXPECT_LE(share_of_pipe(2'000'000), one / 2 + 1);
  EXPECT_LE(share_of_pipe(1'000'000, 1'000'000), one / 2 + 1);
}

// Other processes of the user may come and go: so many that they do not matter.
TEST_F(PipeCount, FallsWithEachPipeAndRisesWhenTheyAreGone) {
  constexpr int kPipes = 2000;
  std::vector<PipeCharge> charges;
  const std::uint64_t before = share_of_pipe(0);
  charges.push_back(charge_pipe());
  if (charges.back().of_user == 0) GTEST_SKIP() << "the kernel has no semaphores for us";
  while (charges.size() < kPipes) charges.push_back(charge_pipe());
  const std::uint64_t with = share_of_pipe(0);
  EXPECT_LT(with, before);
  for (const PipeCharge charge : charges) discharge_pipe(charge);
  EXPECT_GT(share_of_pipe(0), with);
}

TEST_F(PipeCount, OfAProcessThatEndsIsTakenBackByTheKernel) {
  const PipeCharge probe = charge_pipe();
  if (probe.of_user == 0) GTEST_SKIP() << "the kernel has no semaphores for us";
  discharge_pipe(probe);
  constexpr int kPipes = 2000;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    pipe_count_forked();
    for (int i = 0; i < kPipes; ++i) (void)charge_pipe();
    (void)!::write(ends[1], "x", 1);
    ::pause();
  }
  char byte;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  const std::uint64_t with = share_of_pipe(0);
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_GT(share_of_pipe(0), with);
  for (const int fd : ends) ::close(fd);
}

}  // namespace
}  // namespace clan::preload

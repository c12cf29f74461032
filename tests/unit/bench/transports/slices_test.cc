#include "transports/slices.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace clan::bench {
namespace {

TEST(Lost, ToOthersIsWhatTheTurnsOfOwnThreadsDoNotExplain) {
  const Turns before{5, 100};
  EXPECT_EQ(lost_between(before, {5, 100}), Lost::kNever);
  EXPECT_EQ(lost_between(before, {5, 107}), Lost::kNever);
  EXPECT_EQ(lost_between(before, {8, 103}), Lost::kToOwn);
  EXPECT_EQ(lost_between(before, {8, 104}), Lost::kToOwn);
  EXPECT_EQ(lost_between(before, {8, 102}), Lost::kToOthers);
  EXPECT_EQ(lost_between(before, {6, 100}), Lost::kToOthers);
}

TEST(Slices, DropThoseLostToOtherProcessesAndKeepThoseLostToOwnThreads) {
  Slices slices;
  slices.add(3, {Lost::kNever, 60}, 10);
  slices.add(4, {Lost::kToOwn, 70}, 10);
  slices.add(1, {Lost::kToOthers, 20}, 10);
  slices.add(5, {Lost::kToOwn, 90}, 10);
  EXPECT_EQ(slices.calm(), 3u);
  const Figure figure = slices.figure();
  EXPECT_EQ(figure.minimum, 3);
  EXPECT_EQ(figure.median, 4);
  EXPECT_EQ(figure.kept, 3);
  EXPECT_EQ(figure.dropped, 1);
  EXPECT_EQ(figure.shared, 2);
  EXPECT_EQ(figure.cpu, 7);
}

TEST(Slices, AreOfThoseDisturbedWhereNoneIsCalm) {
  Slices slices;
  slices.add(7, {Lost::kToOthers, 8}, 2);
  const Figure figure = slices.figure();
  EXPECT_EQ(figure.minimum, 7);
  EXPECT_EQ(figure.kept, 0);
  EXPECT_EQ(figure.cpu, 4);
  EXPECT_EQ(figure.dropped, 1);
}

TEST(Spent, OfSeveralProcessesIsTheWorstLossAndAllTheirCpuTime) {
  Spent spent{Lost::kToOwn, 3};
  spent += {Lost::kNever, 4};
  EXPECT_EQ(spent.lost, Lost::kToOwn);
  EXPECT_EQ(spent.cpu_us, 7);
  spent += {Lost::kToOthers, 1};
  EXPECT_EQ(spent.lost, Lost::kToOthers);
}

TEST(Slice, HasTheCpuTimeOfTheProcess) {
  constexpr double kSpinNs = 3e6;
  const Slice slice;
  for (const double end = cpu_ns() + kSpinNs; cpu_ns() < end;) continue;
  EXPECT_GE(slice.spent().cpu_us, kSpinNs / 1000);
}

/// This thread, and those it starts, on its first processor alone.
void on_one_processor() {
  cpu_set_t allowed, one;
  CPU_ZERO(&allowed);
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int core = 0;
  while (!CPU_ISSET(core, &allowed)) ++core;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
}

TEST(Lost, CountsTheTurnsOfAThreadThatWakesWhileThisOneComputes) {
  on_one_processor();
  constexpr long kTurns = 20;
  std::atomic<bool> stop{false};
  std::thread driver([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  const Turns before = Turns::now();
  Turns after = before;
  while (after.others < before.others + kTurns) after = Turns::now();
  stop.store(true, std::memory_order_relaxed);
  driver.join();
  // Other processes of the machine may have had it, too: then there are more losses than turns.
  EXPECT_GE(after.others - before.others, kTurns);
}

TEST(Lost, ToAnotherProcessIsSeenWhereThereIsNoOtherThread) {
  on_one_processor();
  const pid_t parent = getpid();
  const pid_t other = fork();
  if (other == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (getppid() == parent) continue;
    _exit(0);
  }
  ASSERT_GT(other, 0);
  const Turns before = Turns::now();
  while (lost_between(before, Turns::now()) == Lost::kNever) continue;
  EXPECT_EQ(lost_between(before, Turns::now()), Lost::kToOthers);
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
}

}  // namespace
}  // namespace clan::bench

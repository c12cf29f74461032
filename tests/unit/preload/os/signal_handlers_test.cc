// What sigaction(), signal() and their kin do: the application sees its own handlers, and they run
// as it has asked.
#include "os/signal_handlers.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace clan::preload {
namespace {

volatile sig_atomic_t handler_runs = 0;
volatile sig_atomic_t value_seen = 0;

struct SignalHandlers : testing::Test {
  SignalHandlers() {
    handler_runs = 0;
    value_seen = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { handler_runs = handler_runs + 1; };
    EXPECT_EQ(set_action(SIGUSR2, &action, &before), 0);
  }
  ~SignalHandlers() override { set_action(SIGUSR2, &before, nullptr); }
  struct sigaction before {};
};

TEST_F(SignalHandlers, AreShownToTheApplicationAsItHasSetThem) {
  struct sigaction now {};
  ASSERT_EQ(set_action(SIGUSR2, nullptr, &now), 0);
  EXPECT_EQ(now.sa_flags & SA_SIGINFO, 0);
  now.sa_handler(SIGUSR2);
  EXPECT_EQ(handler_runs, 1);
}

TEST_F(SignalHandlers, GetTheSignalsValueWhereTheyWantIt) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer delays handlers";
#endif
  struct sigaction action {};
  action.sa_sigaction = [](int, siginfo_t* info, void*) { value_seen = info->si_value.sival_int; };
  action.sa_flags = SA_SIGINFO;
  ASSERT_EQ(set_action(SIGUSR2, &action, nullptr), 0);
  ASSERT_EQ(::sigqueue(::getpid(), SIGUSR2, sigval{42}), 0);
  EXPECT_EQ(value_seen, 42);
  struct sigaction now {};
  ASSERT_EQ(set_action(SIGUSR2, nullptr, &now), 0);
  EXPECT_NE(now.sa_flags & SA_SIGINFO, 0);
  EXPECT_EQ(now.sa_sigaction, action.sa_sigaction);
}

TEST_F(SignalHandlers, StayWhereTheKernelRefusesOthers) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  EXPECT_EQ(set_action(SIGKILL, &action, nullptr), -1);
  EXPECT_EQ(set_action(NSIG + 5, &action, nullptr), -1);
  ::raise(SIGUSR2);
  EXPECT_EQ(handler_runs, 1);
}

TEST_F(SignalHandlers, AreNoneWhereTheApplicationIgnoresTheSignal) {
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  ASSERT_EQ(set_action(SIGUSR2, &ignored, nullptr), 0);
  ::raise(SIGUSR2);
  EXPECT_EQ(handler_runs, 0);
  struct sigaction now {};
  ASSERT_EQ(set_action(SIGUSR2, nullptr, &now), 0);
  EXPECT_EQ(now.sa_handler, SIG_IGN);
}

TEST_F(SignalHandlers, SetBySignalGiveBackTheOnesBefore) {
  const sighandler_t mine = [](int) { handler_runs = handler_runs + 10; };
  const sighandler_t first = set_handler(SIGUSR2, mine, true, ::signal);
  ::raise(SIGUSR2);
  EXPECT_EQ(handler_runs, 10);
  EXPECT_EQ(set_handler(SIGUSR2, first, true, ::signal), mine);
  ::raise(SIGUSR2);
  EXPECT_EQ(handler_runs, 11);
}

TEST_F(SignalHandlers, RestartCallsAsSiginterruptSays) {
  EXPECT_TRUE(signal_restarts(SIGUSR2));
  note_interrupts(SIGUSR2, true);
  EXPECT_FALSE(signal_restarts(SIGUSR2));
  EXPECT_TRUE(signal_restarts(SIGUSR1));
  note_interrupts(SIGUSR2, false);
  EXPECT_TRUE(signal_restarts(SIGUSR2));
  EXPECT_FALSE(signal_restarts(0));
}

}  // namespace
}  // namespace clan::preload

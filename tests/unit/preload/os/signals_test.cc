#include "os/signals.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "os/signal_handlers.h"

namespace clan::preload {
namespace {

volatile sig_atomic_t handled = 0;

struct Signals : testing::Test {
  Signals() {
    handled = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { handled = handled + 1; };
    EXPECT_EQ(set_action(SIGUSR1, &action, &before), 0);
  }
  ~Signals() override { set_action(SIGUSR1, &before, nullptr); }
  struct sigaction before {};
};

// What a section has put off comes by a system call, behind which ThreadSanitizer's own handler
// puts it off again.
constexpr bool handlers_run_at_once() {
#if defined(__SANITIZE_THREAD__)
  return false;
#else
  return true;
#endif
}

TEST_F(Signals, WaitForTheEndOfASection) {
  if (!handlers_run_at_once()) GTEST_SKIP() << "ThreadSanitizer delays handlers";
  {
    const DeferSignals section;
    ::raise(SIGUSR1);
    EXPECT_EQ(handled, 0);
  }
  EXPECT_EQ(handled, 1);
}

TEST_F(Signals, ThatTheMaskOfACallBlocksWaitForItsEnd) {
  if (!handlers_run_at_once()) GTEST_SKIP() << "ThreadSanitizer delays handlers";
  sigset_t mask;
  ::sigemptyset(&mask);
  ::sigaddset(&mask, SIGUSR1);
  {
    const ScopedSigmask masked(&mask);
    ::raise(SIGUSR1);
    { const DeferSignals section; }
    EXPECT_EQ(handled, 0);
  }
  EXPECT_EQ(handled, 1);
  const ScopedSigmask none(nullptr);
  ::raise(SIGUSR1);
  EXPECT_EQ(handled, 2);
}

TEST_F(Signals, OfWhichOneIsHandledEndTheMaskOfACall) {
  if (!handlers_run_at_once()) GTEST_SKIP() << "ThreadSanitizer delays handlers";
  sigset_t mask;
  ::sigemptyset(&mask);
  ::sigaddset(&mask, SIGUSR2);
  const ScopedSigmask masked(&mask);
  ::raise(SIGUSR1);  // its handler may jump out of the call
  EXPECT_EQ(handled, 1);
  EXPECT_EQ(t_signals.blocked, 0u);
}

int values[8];

TEST_F(Signals, ThatWereQueuedComeInTheirOrder) {
  if (!handlers_run_at_once()) GTEST_SKIP() << "ThreadSanitizer delays handlers";
  struct sigaction action {};
  struct sigaction old {};
  action.sa_sigaction = [](int, siginfo_t* info, void*) {
    if (handled < 8) values[handled] = info->si_value.sival_int;
    handled = handled + 1;
  };
  action.sa_flags = SA_SIGINFO;
  ASSERT_EQ(set_action(SIGRTMIN, &action, &old), 0);
  const auto queue = [](int from, int to) {
    for (int i = from; i <= to; ++i)
      EXPECT_EQ(::pthread_sigqueue(::pthread_self(), SIGRTMIN, sigval{i}), 0);
  };
  {
    const DeferSignals section;
    queue(1, 3);
    {
      const AllowSignals gap;
      EXPECT_EQ(handled, 3);
    }
    queue(4, 5);
  }
  ASSERT_EQ(handled, 5);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(values[i], i + 1);
  set_action(SIGRTMIN, &old, nullptr);
}

TEST_F(Signals, WaitForTheOutermostSectionButComeInAGap) {
  if (!handlers_run_at_once()) GTEST_SKIP() << "ThreadSanitizer delays handlers";
  const DeferSignals outer;
  {
    const DeferSignals inner;
    ::raise(SIGUSR1);
  }
  EXPECT_EQ(handled, 0);
  {
    const AllowSignals gap;
    EXPECT_EQ(handled, 1);
  }
  EXPECT_EQ(handled, 1);
}

TEST_F(Signals, AreSeenByACallThatBeganBefore) {
  const SignalSnapshot since;
  EXPECT_FALSE(since.handled());
  ::raise(SIGUSR1);
  EXPECT_TRUE(since.handled());
  EXPECT_TRUE(since.interrupted());  // without SA_RESTART
}

}  // namespace
}  // namespace clan::preload

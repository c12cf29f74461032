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
    const Undisturbed section;
    ::raise(SIGUSR1);
    EXPECT_EQ(handled, 0);
  }
  EXPECT_EQ(handled, 1);
}

TEST_F(Signals, WaitForTheOutermostSectionButComeInAGap) {
  if (!handlers_run_at_once()) GTEST_SKIP() << "ThreadSanitizer delays handlers";
  const Undisturbed outer;
  {
    const Undisturbed inner;
    ::raise(SIGUSR1);
  }
  EXPECT_EQ(handled, 0);
  {
    const Disturbed gap;
    EXPECT_EQ(handled, 1);
  }
  EXPECT_EQ(handled, 1);
}

TEST_F(Signals, AreSeenByACallThatBeganBefore) {
  const SinceEntry since;
  EXPECT_FALSE(since.handled());
  ::raise(SIGUSR1);
  EXPECT_TRUE(since.handled());
  EXPECT_TRUE(since.interrupted());  // without SA_RESTART
}

}  // namespace
}  // namespace clan::preload

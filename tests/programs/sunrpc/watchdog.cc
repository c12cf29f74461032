// Linked into a test program, ends it when one of its tests takes five minutes, and says where: a
// test that waits for another process for ever would otherwise be ended by ctest, which cannot say.
#include <execinfo.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstring>

namespace clan::test {
namespace {

constexpr time_t kMostSeconds = 5 * 60;

void say(const char* text) { (void)!write(STDERR_FILENO, text, std::strlen(text)); }

void tell_and_end(int) {
  say("watchdog: a test has taken five minutes; its main thread is in\n");
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  _exit(1);
}

class Watchdog : public testing::EmptyTestEventListener {
  void OnTestProgramStart(const testing::UnitTest&) override {
    void* frame = nullptr;
    (void)backtrace(&frame, 1);  // loads what it needs: not in the handler
    const int number = SIGRTMAX - 1;
    signal(number, tell_and_end);
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = number;
    event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
    armed_ = timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0;
  }
  void OnTestStart(const testing::TestInfo&) override { set(kMostSeconds); }
  void OnTestEnd(const testing::TestInfo&) override { set(0); }
  void set(time_t seconds) const {
    const itimerspec when{{0, 0}, {seconds, 0}};
    if (armed_) timer_settime(timer_, 0, &when, nullptr);
  }

  timer_t timer_{};
  bool armed_ = false;
};

[[maybe_unused]] const bool watched = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new Watchdog);
  return true;
}();

}  // namespace
}  // namespace clan::test

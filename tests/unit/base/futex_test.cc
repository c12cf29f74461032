#include "base/futex.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <thread>

#include "base/fd.h"
#include "base/mapping.h"
#include "support/process.h"

namespace clan {
namespace {

TEST(Futex, DoesNotSleepWhenTheWordDiffers) {
  std::atomic<std::uint32_t> word{3};
  EXPECT_EQ(futex_wait(word, 4, kNoDeadline), 0);
}

TEST(Futex, SleepsUntilTheDeadlineAndNotBeyond) {
  std::atomic<std::uint32_t> word{0};
  const std::uint64_t start = monotonic_ns();
  EXPECT_EQ(futex_wait(word, 0, deadline_after_ms(20)), ETIMEDOUT);
  const std::uint64_t took = monotonic_ns() - start;
  EXPECT_GE(took, 19'000'000u);
  EXPECT_LT(took, 2'000'000'000u);
  EXPECT_EQ(futex_wait(word, 0, 1), ETIMEDOUT) << "a deadline in the past";
}

TEST(Futex, WakesAThread) {
  std::atomic<std::uint32_t> word{0};
  std::thread sleeper([&] {
    while (word.load() == 0) EXPECT_NE(futex_wait(word, 0, deadline_after_ms(10'000)), ETIMEDOUT);
  });
  word.store(1);
  futex_wake(word);
  sleeper.join();
}

TEST(Futex, WakesAnotherProcessThroughAnotherMapping) {
  auto memfd = create_memfd("clan-test", kPageSize);
  ASSERT_OK(memfd);
  test::Gate ready;
  auto child = test::Process::start([&] {
    auto m = Mapping::map(memfd->get(), kPageSize, Mapping::Access::kReadWrite);
    CHILD_OK(m);
    auto& word = *reinterpret_cast<std::atomic<std::uint32_t>*>(m->data());
    ready.open();
    while (word.load() == 0)
      CHILD_CHECK(futex_wait(word, 0, deadline_after_ms(10'000)) != ETIMEDOUT);
    return 0;
  });
  auto m = Mapping::map(memfd->get(), kPageSize, Mapping::Access::kReadWrite);
  ASSERT_OK(m);
  ASSERT_TRUE(ready.wait());
  auto& word = *reinterpret_cast<std::atomic<std::uint32_t>*>(m->data());
  word.store(1);
  futex_wake(word);
  EXPECT_TRUE(child.wait(10'000).clean());
}

TEST(Futex, SaysWhenASignalEndedTheSleep) {
  struct sigaction action {
  }, old{};
  action.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &old), 0);
  std::atomic<std::uint32_t> word{0};
  std::atomic<int> rc{-1};
  std::thread sleeper([&] { rc = futex_wait(word, 0, deadline_after_ms(10'000)); });
  // The first signals may arrive before it sleeps.
  EXPECT_TRUE(test::eventually([&] {
    ::pthread_kill(sleeper.native_handle(), SIGUSR1);
    return rc.load() != -1;
  }));
  sleeper.join();
  EXPECT_EQ(rc.load(), EINTR);
  ::sigaction(SIGUSR1, &old, nullptr);
}

}  // namespace
}  // namespace clan

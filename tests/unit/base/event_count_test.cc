#include "base/event_count.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <thread>

namespace clan {
namespace {

int sleep_on(EventCount& count, std::uint32_t seen, std::uint64_t deadline_ns) {
  return count.commit_wait([&](auto& word) { return futex_wait(word, seen, deadline_ns); });
}

TEST(EventCount, DoesNotSleepWhereThereHaveBeenNews) {
  EventCount count;
  const std::uint32_t seen = count.prepare_wait();
  EXPECT_FALSE(count.has_changed(seen));
  count.notify();
  EXPECT_TRUE(count.has_changed(seen));
  EXPECT_EQ(sleep_on(count, seen, kNoDeadline), 0);
}

TEST(EventCount, SleepsUntilTheDeadlineWhereThereAreNone) {
  EventCount count;
  EXPECT_EQ(sleep_on(count, count.prepare_wait(), monotonic_ns() + 1'000'000), ETIMEDOUT);
}

TEST(EventCount, WakesEachThreadThatWaits) {
  EventCount count;
  std::atomic<bool> there{false};
  const auto wait = [&] {
    for (;;) {
      const std::uint32_t seen = count.prepare_wait();
      if (there.load(std::memory_order_relaxed)) return;
      (void)sleep_on(count, seen, kNoDeadline);
    }
  };
  std::thread first(wait), second(wait);
  there.store(true, std::memory_order_relaxed);
  count.notify();
  first.join();
  second.join();
}

}  // namespace
}  // namespace clan

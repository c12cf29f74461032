#include "clan/detail/clock.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace clan {
namespace {

TEST(Clock, ADeadlineIsThatLongFromNow) {
  const std::uint64_t before = monotonic_ns();
  const std::uint64_t deadline = deadline_after_ms(20'000);
  EXPECT_GE(deadline, before + 20'000'000'000u);
  EXPECT_LE(deadline, monotonic_ns() + 20'000'000'000u);
  const std::uint64_t at_once = deadline_after_ms(0);
  EXPECT_LE(at_once, monotonic_ns());
}

TEST(Clock, ADeadlineBeyondAllTimesIsNone) {
  EXPECT_EQ(deadline_after_ms(-1), kNoDeadline);
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t ms : {most, most / 1'000, most / 500'000, std::int64_t{1} << 44}) {
    const std::uint64_t now = monotonic_ns();
    EXPECT_GT(deadline_after_ms(ms), now + 3'600'000'000'000u) << ms;
  }
  EXPECT_EQ(deadline_after_ms(most), kNoDeadline);
}

}  // namespace
}  // namespace clan

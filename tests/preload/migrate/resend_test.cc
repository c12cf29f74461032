#include "migrate/resend.h"

#include <gtest/gtest.h>

namespace clan::preload {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

TEST(UntilTaken, IsOverTenSecondsAfterSomethingWasTaken) {
  UntilTaken patience;
  EXPECT_FALSE(patience.over(kSecond, 0));
  EXPECT_FALSE(patience.over(10 * kSecond, 5));
  EXPECT_FALSE(patience.over(19 * kSecond, 5));
  EXPECT_TRUE(patience.over(20 * kSecond, 5));
}

TEST(UntilTaken, IsNotProlongedForeverByWhoTakesALittleNowAndThen) {
  UntilTaken patience;
  std::uint64_t now = kSecond, bytes = 0;
  while (!patience.over(now, ++bytes) && now < 1000 * kSecond) now += kSecond;
  EXPECT_EQ(now, kSecond + UntilTaken::kMostNs);
}

}  // namespace
}  // namespace clan::preload

#include "link/udp/transport/optimistic_ack_guard.h"

#include <gtest/gtest.h>

namespace clan::udp {
namespace {

TEST(OptimisticAckGuard, IsOneOfTheFirstAndThenOneOfManyButNeverNumberOne) {
  for (const std::uint64_t random : {std::uint64_t{0}, std::uint64_t{77}, ~std::uint64_t{0}}) {
    OptimisticAckGuard s;
    EXPECT_FALSE(s.due(1'000'000)) << "it has not begun";
    s.begin(random);
    std::uint64_t next = 1;
    while (!s.due(next)) ++next;
    EXPECT_GT(next, 1u);
    EXPECT_LE(next, 1 + OptimisticAckGuard::kFirst);
    s.skip(next, random);
    std::uint64_t second = next + 1;
    while (!s.due(second)) ++second;
    EXPECT_LE(second, next + OptimisticAckGuard::kEvery);
  }
}

TEST(OptimisticAckGuard, IsFoundInWhatAPeerAcknowledges) {
  OptimisticAckGuard s;
  s.begin(0);
  EXPECT_FALSE(s.within(1, 1'000'000)) << "none has been skipped";
  s.skip(10, 0);
  EXPECT_TRUE(s.within(10, 10));
  EXPECT_TRUE(s.within(1, 20));
  EXPECT_FALSE(s.within(1, 9));
  EXPECT_FALSE(s.within(11, 20));
}

}  // namespace
}  // namespace clan::udp

#include "wire/slow_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <span>

#include "system/provider.h"

namespace clan::ofi {
namespace {

struct Queue {
  std::deque<int> ended;  ///< status of each
  std::size_t poll(std::span<RdmaCompletion> to) {
    std::size_t n = 0;
    for (; n < to.size() && !ended.empty(); ++n, ended.pop_front()) to[n].status = ended.front();
    return n;
  }
};

TEST(SlowCopies, AreOverWhenTheLastHasEnded) {
  Queue queue{{0, 0}};
  std::size_t left = 3;
  int err = 0;
  EXPECT_FALSE(take_copies(queue, &left, &err));
  EXPECT_EQ(left, 1u);
  queue.ended = {0};
  EXPECT_TRUE(take_copies(queue, &left, &err));
  EXPECT_EQ(err, 0);
}

TEST(SlowCopies, KeepTheFirstFailure) {
  Queue queue{{0, ESTALE, EFAULT}};
  std::size_t left = 3;
  int err = 0;
  EXPECT_TRUE(take_copies(queue, &left, &err));
  EXPECT_EQ(err, ESTALE);
  EXPECT_EQ(copy_failure(err), -FI_ENOKEY);
  EXPECT_EQ(copy_failure(ERANGE), -FI_EINVAL);
  EXPECT_EQ(copy_failure(0), 0);
  EXPECT_EQ(copy_failure(EFAULT), -EFAULT);
}

TEST(Silence, LastsTwiceAsLongEachTimeUpToALimitAndEndsWithAnAnswer) {
  Silence silence;
  std::uint64_t now = 1'000'000;
  const auto clock = [&now] { return now; };
  EXPECT_FALSE(silence.holds(clock));
  for (const std::uint64_t length : {100, 200, 400, 800, 1600, 3200, 3200}) {
    silence.begin(now);
    now += length * 1'000'000 - 1;
    EXPECT_TRUE(silence.holds(clock)) << length;
    ++now;
    EXPECT_FALSE(silence.holds(clock)) << length;
  }
  silence.end();
  silence.begin(now);
  now += Silence::kFirstNs;
  EXPECT_FALSE(silence.holds(clock)) << "it starts anew after an answer";
}

}  // namespace
}  // namespace clan::ofi

#include "os/timeout.h"

#include <gtest/gtest.h>

namespace clan::preload {
namespace {

TEST(Timeout, IsForEverWithoutOneOrWithALongOne) {
  std::int64_t ns = 0;
  EXPECT_TRUE(nanoseconds(nullptr, &ns));
  EXPECT_EQ(ns, kForEver);
  const timespec long_one{5'000'000'000, 0};
  EXPECT_TRUE(nanoseconds(&long_one, &ns));
  EXPECT_EQ(ns, kForEver);
}

TEST(Timeout, IsRefusedAsTheKernelRefusesIt) {
  std::int64_t ns = 0;
  for (const timespec wrong : {timespec{-1, 0}, timespec{0, -1}, timespec{0, 1'000'000'000}}) {
    errno = 0;
    EXPECT_FALSE(nanoseconds(&wrong, &ns));
    EXPECT_EQ(errno, EINVAL);
  }
}

TEST(Timeout, IsTheSameThereAndBack) {
  const timespec one{3, 141'592'653};
  std::int64_t ns = 0;
  ASSERT_TRUE(nanoseconds(&one, &ns));
  const timespec back = as_timespec(ns);
  EXPECT_EQ(back.tv_sec, one.tv_sec);
  EXPECT_EQ(back.tv_nsec, one.tv_nsec);
}

TEST(Timeout, RunsDownToNothing) {
  EXPECT_EQ(TimeOut(kForEver).left(), kForEver);
  EXPECT_EQ(TimeOut(0).left(), 0);
  const TimeOut one(1);
  while (one.left() > 0) {
  }
  EXPECT_EQ(one.left(), 0);
}

}  // namespace
}  // namespace clan::preload

// The version that a program asks for.
#include <clan/version.h>
#include <gtest/gtest.h>

#include <cstdio>

namespace clan {
namespace {

TEST(Version, IsThreeNumbers) {
  unsigned major = 0, minor = 0, patch = 0;
  int used = 0;
  ASSERT_EQ(std::sscanf(version(), "%u.%u.%u%n", &major, &minor, &patch, &used), 3) << version();
  EXPECT_EQ(version()[used], 0);
}

TEST(Version, IsTheSameStringEachTime) { EXPECT_EQ(version(), version()); }

}  // namespace
}  // namespace clan

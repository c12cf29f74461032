#include "stream/step.h"

#include <gtest/gtest.h>

namespace clan::preload {
namespace {

TEST(Step, IsTheNextOneTheFirstOneOrAnAnswer) {
  EXPECT_TRUE(Step::next().goes_on());
  EXPECT_FALSE(Step::next().is_answer());
  EXPECT_FALSE(Step::again().goes_on());
  EXPECT_FALSE(Step::again().is_answer());
  for (const ssize_t answer : {-1, 0, 1, 1 << 30}) {
    EXPECT_FALSE(Step::over(answer).goes_on());
    EXPECT_TRUE(Step::over(answer).is_answer());
    EXPECT_EQ(Step::over(answer).answer(), answer);
  }
}

}  // namespace
}  // namespace clan::preload

#include <gtest/gtest.h>

#include "stream/blocking.h"

namespace clan::preload {
namespace {

TEST(StepResult, IsTheNextOneTheFirstOneOrAnAnswer) {
  EXPECT_TRUE(StepResult::next().goes_on());
  EXPECT_FALSE(StepResult::next().is_answer());
  EXPECT_FALSE(StepResult::again().goes_on());
  EXPECT_FALSE(StepResult::again().is_answer());
  for (const ssize_t answer : {-1, 0, 1, 1 << 30}) {
    EXPECT_FALSE(StepResult::over(answer).goes_on());
    EXPECT_TRUE(StepResult::over(answer).is_answer());
    EXPECT_EQ(StepResult::over(answer).answer(), answer);
  }
}

}  // namespace
}  // namespace clan::preload

// What tests expect of a run of the model checker. One thread searches: such tests are in no build
// with a sanitizer. Searches of seconds are in suites of their own, ...AtLength: `./check --full`.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "support/interleaving.h"

namespace clan::testing {

/// In place of ModelFence: a symmetric fence that has been left out.
struct Unfenced {
  static void even() {}
};

/// Every interleaving was tried, and all went well.
inline void expect_safe(const Report& r) {
  EXPECT_FALSE(r.failed) << r.trace;
  EXPECT_TRUE(r.exhausted);
  EXPECT_GT(r.executions, 1);
  ::testing::Test::RecordProperty("executions", std::to_string(r.executions));
  std::printf("             %s\n", r.summary().c_str());
}

/// Expects that the checker sees a protocol that is broken on purpose.
inline void expect_caught(const Report& r) {
  EXPECT_TRUE(r.failed) << "the checker does not see this mistake: " << r.summary();
  EXPECT_NE(r.trace, "");
  std::printf("             %s\n", r.summary().c_str());
}

}  // namespace clan::testing

// What tests expect of a run of the model checker.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "support/interleaving.h"

// Whether searches of a second and more are made. One thread searches, and a sanitizer finds in
// them what it finds in the others, after a minute; and a deep one takes more stack than there is.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CLAN_LONG_SEARCHES 0
#else
#define CLAN_LONG_SEARCHES 1
#endif

namespace clan::testing {

/// In place of ModelFence: a symmetric fence that has been left out.
struct Unfenced {
  static void even() {}
};

/// Every interleaving was looked at, and all went well.
inline void expect_safe(const Report& r) {
  EXPECT_FALSE(r.failed) << r.trace;
  EXPECT_TRUE(r.exhausted);
  EXPECT_GT(r.executions, 1);
  ::testing::Test::RecordProperty("executions", std::to_string(r.executions));
  std::printf("             %s\n", r.summary().c_str());
}

/// Of a protocol that is broken on purpose: the checker sees it.
inline void expect_caught(const Report& r) {
  EXPECT_TRUE(r.failed) << "the checker does not see this mistake: " << r.summary();
  EXPECT_NE(r.trace, "");
  std::printf("             %s\n", r.summary().c_str());
}

}  // namespace clan::testing

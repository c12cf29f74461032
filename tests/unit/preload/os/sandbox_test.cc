#include "os/sandbox.h"

#include <gtest/gtest.h>

namespace clan::preload {
namespace {

TEST(Sandbox, WithoutAFilterPermitsWhatConnectionsNeed) {
  if (is_filtered()) GTEST_SKIP() << "this process is behind a filter of system calls";
  EXPECT_TRUE(permits_moving());
  EXPECT_TRUE(permits_counting());
}

}  // namespace
}  // namespace clan::preload

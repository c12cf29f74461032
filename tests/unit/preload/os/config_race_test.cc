// The settings are read once, by whichever thread asks first: ThreadSanitizer sees whether the
// others may use them.
#include <gtest/gtest.h>
#include <sys/types.h>

#include "os/config.h"
#include "support/hand_over.h"

namespace clan::preload {
namespace {

// In a program in which something has asked before, both find what was read then.
TEST(Config, OneThatAsksSecondSeesWhatTheFirstHasRead) {
  uid_t first = 0, second = 1;
  test::hand_over([&] { first = config().overflow_uid; }, [&] { second = config().overflow_uid; });
  EXPECT_EQ(first, second);
}

}  // namespace
}  // namespace clan::preload
